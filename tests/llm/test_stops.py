"""Stop texts: where answers are cut, in any batch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from llm.test_extract import read_all
from llm.tiny import VOCABULARY, extract, make_model, make_questions, make_tokenizer
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from trials import FULL_ONLY

from wdsbench.llm.extract import ExtractReport
from wdsbench.llm.options import TraceOptions
from wdsbench.llm.stops import Stops

QUESTIONS = make_questions(10)
TOKENS = 6


@pytest.fixture(scope="module")
def by_bytes() -> Any:
    """Return a tokenizer of bytes, with merged tokens ``.\\n``, `` Q`` and ``\\n\\n``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(".", "Ċ"), ("Ġ", "Q"), ("Ċ", "Ċ")]
    vocabulary = {text: place for place, text in enumerate([*alphabet, *map("".join, merges)])}
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


# answer, stop texts, text that is kept (None: all of it), straddled
CUTS: list[tuple[str, list[str], str | None, bool]] = [
    ("Paris\nQ: who", ["\n"], "Paris", False),
    ("Paris.\nQ: who", ["\n"], "Paris", True),  # the token is ".\n"
    ("Paris Q: who", ["Q:"], "Paris", False),  # a blank in " Q" is no visible text
    ("Paris. And", ["And", "."], "Paris", False),
    ("one two three", ["two three", "wo"], "one t", False),  # what is reached first
    ("caf\u00e9 \u20ac5", ["\u20ac"], "caf\u00e9 ", False),  # three bytes
    ("a\u00e9b\u00e8c", ["\u00e8"], "a\u00e9b", False),  # the first of its two bytes is as in é
    ("Paris", ["\n", "Q"], None, False),
    ("\nParis", ["\n"], "", False),
    ("a\n\nb", ["\n\n"], "a", False),
    ("a\n\nb", ["\n"], "a", False),
]


@pytest.mark.parametrize(("answer", "stops", "kept", "straddled"), CUTS)
def test_cuts(
    answer: str, stops: list[str], kept: str | None, straddled: bool, by_bytes: Any
) -> None:
    tokens = by_bytes(answer)["input_ids"]
    found = Stops(by_bytes, stops).cut(tokens)
    if kept is None:
        assert found is None
    else:
        assert found is not None
        assert (by_bytes.decode(tokens[: found[0]]), found[1]) == (kept, straddled)
        # What follows plays no role.
        more = by_bytes(answer + stops[0] + answer)["input_ids"]
        assert Stops(by_bytes, stops).cut(more) == found


def test_escapes() -> None:
    given = (r"\n", r"\n\nQ:", "\n", r"a\tb", r"\\n", r"\d")
    assert TraceOptions(stop=given).stop_texts == ("\n", "\n\nQ:", "\n", "a\tb", r"\n", r"\d")


def answers(folder: Path) -> list[list[int]]:
    return [trace.tokens[trace.prompt_length :].tolist() for trace in read_all(folder)]


def run(out: Path, **options: Any) -> ExtractReport:
    model = make_model()
    settings = {"max_new_tokens": TOKENS, "attention": (), "tokens": "last", **options}
    return extract(model, make_tokenizer(), QUESTIONS, out, **settings)


def before_a_stop(answer: list[int]) -> list[int]:
    """Return the answer before the word "red" or the words "what blue"."""
    words = {token: word for word, token in VOCABULARY.items()}
    texts = [words[token] for token in answer]
    places = [place for place, text in enumerate(texts) if text == "red"]
    pairs = enumerate(pairwise(texts))
    places += [place for place, pair in pairs if pair == ("what", "blue")]
    return answer[: min(places)] if places else answer


def test_answers_are_those_without_stops_up_to_the_first(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain")
    whole = answers(tmp_path / "plain")
    wanted = [before_a_stop(answer) for answer in whole]
    assert 2 < sum(len(own) < len(answer) for own, answer in zip(wanted, whole, strict=True)) < 10
    for size in (1, 5):
        report = run(tmp_path / str(size), batch_size=size, stop=("red", "what blue"))
        assert answers(tmp_path / str(size)) == [
            own or answer[:1] for own, answer in zip(wanted, whole, strict=True)
        ]
        empty = [trace.answer for trace in read_all(tmp_path / str(size))].count("")
        assert empty == report.empty_answers >= wanted.count([]) > 0
        assert report.unfinished_answers < plain.unfinished_answers
        assert report.unfinished_answers == sum(len(own) == TOKENS for own in wanted)
        assert report.unfinished_share == report.unfinished_answers / 10
        assert report.straddled_answers == 0


@pytest.mark.parametrize("decode", ["beam", pytest.param("sample", marks=FULL_ONLY)])
def test_stops_of_other_decoding_do_not_depend_on_the_batch(decode: str, tmp_path: Path) -> None:
    for size in (1, 4):
        stop: dict[str, Any] = {"stop": ("red",), "max_new_tokens": 4, "beams": 2}
        run(tmp_path / str(size), batch_size=size, decode=decode, **stop)
    found = answers(tmp_path / "1")
    assert found == answers(tmp_path / "4")
    assert not any(VOCABULARY["red"] in answer[1:] for answer in found)


def test_stops_and_prompt_files_are_settings_of_the_run(tmp_path: Path) -> None:
    short: dict[str, Any] = {"max_new_tokens": 1, "journal": True}
    run(tmp_path / "stop", stop=(r"red\n",), **short)
    run(tmp_path / "stop", stop=("red\n",), resume=True, **short)
    with pytest.raises(ValueError, match=r"was begun with stop \['red\\n'\], this run has None"):
        run(tmp_path / "stop", resume=True, **short)
    prefix = tmp_path / "examples.txt"
    prefix.write_text("who is\nred ", encoding="utf-8")
    run(tmp_path / "prefix", prompt_file=prefix, **short)
    run(tmp_path / "template", template="who is\nred {question}", **short)
    tokens = [
        [trace.tokens.tolist() for trace in read_all(tmp_path / name)]
        for name in ("prefix", "template")
    ]
    assert tokens[0] == tokens[1]
    prefix.write_text("who is\nblue ", encoding="utf-8")
    with pytest.raises(ValueError, match="was begun with questions"):
        run(tmp_path / "prefix", prompt_file=prefix, resume=True, **short)
