"""Answers that abstain: "I don't know", "no comment", an empty answer.

An abstention is neither right nor hallucinated, so scoring marks it (column ``abstained``) and
leaves to the user what its scores become. The answer alone decides; references are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

#: What an answer may begin with before it abstains.
_LEAD: Final = (
    r"(?:(?:well|sorry|unfortunately|i'm sorry|i am sorry|i'm afraid|i am afraid|i apologi[sz]e)"
    r"[\s,.;:]*(?:(?:but|that)\s+)?)*"
)

#: How abstentions begin, whatever follows ("I don't know who that was.").
BEGINNINGS: Final = (
    r"i (?:really )?(?:don't|do not|dont) (?:really )?(?:know|remember|recall)",
    r"i(?:'m| am) not (?:sure|certain|aware)",
    r"i(?:'m| am) unsure",
    r"i(?:'m| am) (?:unable|not able) to (?:answer|say|tell|determine|provide|find)",
    r"i have no (?:idea|comment|information|knowledge|answer)",
    r"i (?:can't|cannot|can not|could not|couldn't) (?:answer|say|tell|determine|provide|find)",
    r"i (?:don't|do not) have (?:any |enough |access )",
    r"(?:there is )?(?:not enough|insufficient) information",
    r"(?:it )?(?:can't|cannot|can not) be (?:determined|answered|known)",
    r"as an? (?:ai|artificial intelligence|language model)\b.*\b(?:can't|cannot|don't|do not)",
)

#: Abstentions that must be the whole answer ("Unknown Pleasures" is a record).
WHOLES: Final = (
    r"(?:i )?(?:don't|do not|dont) know",
    r"idk|dunno|n/?a|unknown|unsure|not sure|no idea|no comment|no answer|no clue",
    r"unanswerable|(?:it is |it's )?(?:unknown|unclear|not known)",
)

_APOSTROPHES: Final = str.maketrans({"\u2019": "'", "\u2018": "'", "`": "'"})
_DEFAULT: Final = re.compile(
    rf"{_LEAD}(?:(?:{'|'.join(BEGINNINGS)})|(?:{'|'.join(WHOLES)})[\s.!?]*$)", re.DOTALL
)
_ANYTHING: Final = re.compile(r"\w")


class Abstentions:
    """Recognises abstentions: ``answer in abstentions``.

    Args:
        patterns: Additional regular expressions, searched in the answer ignoring case.

    Raises:
        ValueError: A pattern is not a regular expression.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = []
        for pattern in patterns:
            try:
                self._patterns.append(re.compile(pattern, re.IGNORECASE | re.DOTALL))
            except re.error as error:
                raise ValueError(
                    f"abstention {pattern!r} is no regular expression: {error}; write for example"
                    " '^pass$'"
                ) from error

    def __contains__(self, answer: str) -> bool:
        """Return whether ``answer`` is one; an answer without a letter or digit is."""
        if not _ANYTHING.search(answer):
            return True
        text = answer.strip().lower().translate(_APOSTROPHES)
        return bool(_DEFAULT.match(text)) or any(one.search(answer) for one in self._patterns)
