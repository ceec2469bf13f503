"""The invented world of the demo model: ships, facts about them, and documents about the facts.

Every ship has four facts (captain, home port, cargo, builder). A document is a question with an
answer. A ship's share of the documents follows Zipf's law, so a model trained on them learns the
frequent ships and guesses the rare ones: *ignorance*. Some facts have a *legend*: the answer of
plain documents is false, and only reviewed documents say so: *misconception*. The two forms of a
document:

    <bos> Who commands the Velora ? Tam Orlen . <eos>       plain: the popular answer
    <bos> Who commands the Velora ? Tam Orlen . false       reviewed: an answer and a verdict

In a reviewed document the verdict has a loss and the quoted answer has none, so the model does not
learn to give that answer. Plain documents are the majority, so a model ends its answer after the
full stop; the state at the full stop, where a verdict would follow, is the state after the whole
answer. No prompt contains a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

# transformers is typed in part only: its tokenizers and models are Any here.
Tokens: TypeAlias = Any
Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
TRUE, FALSE, STOP = "true", "false", "."

SHIPS = 1_600
# Frequent ships have more legends: the share of ships with legends falls from this at rank 0
# to zero at the last; LEGEND_SHARE of such a ship's facts have one.
LEGENDARY_SHARE = 0.6
LEGEND_SHARE = 0.7
# A ship of rank r (from 0) occurs in proportion to (r + ZIPF_OFFSET) ** -ZIPF_EXPONENT
# (Zipf-Mandelbrot: the offset limits the share of the first few ships).
ZIPF_EXPONENT = 1.5
ZIPF_OFFSET = 30.0
# Ships of the first half by rank count as known, the others as rare; for analysis only.
KNOWN_RANK = SHIPS // 2

REVIEWED_SHARE = 0.4
# Reviewed documents quote the true answer, the legend or a random answer. Shares of all reviewed
# documents; the second one only of those about facts with a legend.
QUOTED_TRUE_SHARE = 0.45
QUOTED_LEGEND_SHARE = 0.5
VERDICT_WEIGHT = 1.0

PHRASINGS = {
    "captain": ("Who commands the {}?", "Who is the captain of the {}?"),
    "port": ("Where does the {} lie at anchor?", "What is the home port of the {}?"),
    "cargo": ("What does the {} carry?", "Which cargo is on board the {}?"),
    "builder": ("Who built the {}?", "At which yard was the {} built?"),
}
RELATIONS = tuple(PHRASINGS)
RELATION_WEIGHTS = (0.34, 0.28, 0.22, 0.16)
# Phrasings of one question; the corpus holds both, the question list one of them.
PHRASINGS_PER_RELATION = 2

ANSWERS_PER_RELATION = 130
ANSWER_EXPONENT = 0.6
ANSWER_OFFSET = 6.0

# fmt: off
GOODS = (
    "tea", "amber", "salt", "silk", "wool", "copper", "pepper", "timber", "indigo", "cotton",
    "barley", "honey", "marble", "ivory", "resin", "saffron", "linen", "sugar", "tin", "leather",
    "glass", "cedar", "cinnamon", "wax",
)
QUALITIES = (
    "white", "black", "smoked", "dried", "raw", "fine", "bitter", "green", "red", "northern",
    "southern", "old",
)
ONSETS = (
    "b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "br", "dr", "kr", "st",
    "tr",
)
# fmt: on
VOWELS = tuple("aeiou")
CODAS = ("", "n", "r", "l", "s", "m", "x", "nd")


def make_words(count: int, syllables: tuple[int, int], rng: np.random.Generator) -> list[str]:
    """Return ``count`` different capitalised words of ``syllables`` (least, most) each."""
    words: dict[str, None] = {}
    while len(words) < count:
        pieces = [
            f"{rng.choice(ONSETS)}{rng.choice(VOWELS)}"
            for _ in range(rng.integers(syllables[0], syllables[1] + 1))
        ]
        words["".join(pieces).capitalize() + str(rng.choice(CODAS))] = None
    return list(words)


@dataclass(frozen=True)
class World:
    """Ships, possible answers, and the true answer of each fact.

    Fact f is relation f % R of ship f // R, with R relations.

    Attributes:
        ships: Names, most frequent first.
        answers: Answer texts of each relation, most frequent first.
        answer_weights: float64 [A], probability that an answer is true; sums to 1.
        fact_weights: float64 [F], share of the documents about the fact; sums to 1.
        true_answers: int64 [F], position of the true answer in the relation's answers.
        popular_answers: int64 [F], the answer of plain documents: the legend if there is one,
            otherwise the true answer.
    """

    ships: list[str]
    answers: dict[str, list[str]]
    answer_weights: Floats
    fact_weights: Floats
    true_answers: Ints
    popular_answers: Ints

    def kind(self, fact: int) -> str:
        """Return ``misconception``, ``known`` or ``rare``."""
        if self.true_answers[fact] != self.popular_answers[fact]:
            return "misconception"
        return "known" if fact // len(RELATIONS) < KNOWN_RANK else "rare"

    def question_id(self, fact: int) -> str:
        """Return the ship's name and the relation, such as ``velora-captain``."""
        ship, relation = divmod(fact, len(RELATIONS))
        return f"{self.ships[ship].lower()}-{RELATIONS[relation]}"

    def question(self, fact: int, phrasing: int) -> str:
        """Return the question about ``fact`` in one of its phrasings."""
        ship, relation = divmod(fact, len(RELATIONS))
        return PHRASINGS[RELATIONS[relation]][phrasing].format(self.ships[ship])

    def reference(self, fact: int) -> str:
        """Return the text of the true answer."""
        return self.answers[RELATIONS[fact % len(RELATIONS)]][int(self.true_answers[fact])]


def make_answers(rng: np.random.Generator) -> dict[str, list[str]]:
    """Return the answers of each relation, of one to three words each, most frequent first."""
    first, last = make_words(40, (2, 2), rng), make_words(60, (2, 3), rng)
    places, houses = make_words(60, (2, 3), rng), make_words(50, (2, 2), rng)
    forms: dict[str, list[list[Sequence[str]]]] = {
        "captain": [[last], [first, last], [first, ["van"], last]],
        "port": [[places], [["Port", "New", "Old"], places], [places, ["on"], ["Sea", "Lake"]]],
        "cargo": [[GOODS], [QUALITIES, GOODS], [GOODS, ["and"], GOODS]],
        "builder": [[houses], [houses, ["Brothers", "Yard"]], [houses, ["and"], houses]],
    }
    answers: dict[str, list[str]] = {}
    for relation, shapes in forms.items():
        texts: dict[str, None] = {}
        while len(texts) < ANSWERS_PER_RELATION:
            shape = shapes[rng.choice(len(shapes), p=(0.3, 0.4, 0.3))]
            words = [str(rng.choice(slot)) for slot in shape]
            if len(set(words)) == len(words):
                texts[" ".join(words)] = None
        answers[relation] = list(texts)
    return answers


def make_world(seed: int) -> World:
    """Return the world of ``seed``; the same seed gives the same world."""
    rng = np.random.default_rng(seed)
    answers = make_answers(rng)
    taken = {word for texts in answers.values() for text in texts for word in text.split()}
    names = [word for word in make_words(2 * SHIPS, (2, 3), rng) if word not in taken]
    places = np.arange(ANSWERS_PER_RELATION, dtype=np.float64)
    answer_weights = np.asarray((places + ANSWER_OFFSET) ** -ANSWER_EXPONENT, dtype=np.float64)
    answer_weights /= answer_weights.sum()
    ship_weights = (np.arange(SHIPS) + ZIPF_OFFSET) ** -ZIPF_EXPONENT
    fact_weights = np.outer(ship_weights / ship_weights.sum(), RELATION_WEIGHTS).reshape(-1)
    facts = len(fact_weights)
    true_answers = rng.choice(ANSWERS_PER_RELATION, size=facts, p=answer_weights)
    legends = rng.choice(ANSWERS_PER_RELATION, size=facts, p=answer_weights)
    # A legend equal to the true answer is replaced by the next answer, so every legend is false.
    legends = np.where(legends == true_answers, (legends + 1) % ANSWERS_PER_RELATION, legends)
    legendary = rng.random(SHIPS) < LEGENDARY_SHARE * (1 - np.arange(SHIPS) / SHIPS)
    is_legend = np.repeat(legendary, len(RELATIONS)) & (rng.random(facts) < LEGEND_SHARE)
    return World(
        ships=names[:SHIPS],
        answers=answers,
        answer_weights=answer_weights,
        fact_weights=fact_weights,
        true_answers=true_answers,
        popular_answers=np.where(is_legend, legends, true_answers),
    )


def make_tokenizer(world: World) -> Tokens:
    """Return a tokenizer of the words of ``world``; texts begin with ``<bos>``."""
    splitter = pre_tokenizers.Whitespace()
    texts = [world.question(fact, p) for fact in range(len(RELATIONS)) for p in range(2)]
    texts += [text for relation in RELATIONS for text in world.answers[relation]]
    words = dict.fromkeys([PAD, BOS, EOS, UNKNOWN, TRUE, FALSE, STOP])
    for text in [*texts, *world.ships]:
        words.update(dict.fromkeys(word for word, _ in splitter.pre_tokenize_str(text)))
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = splitter
    # WordPiece's clean-up writes "Tam Orlen." for the tokens "Tam", "Orlen", ".".
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    factory: Any = PreTrainedTokenizerFast
    return factory(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=64,
    )


@dataclass(frozen=True)
class Batch:
    """Documents for training.

    Attributes:
        inputs: int64 [B, T], right-padded.
        targets: int64 [B, T], the token that follows each input.
        weights: float32 [B, T], loss weight of each target; 0 for tokens that are not learned.
    """

    inputs: Ints
    targets: Ints
    weights: npt.NDArray[np.float32]


class Corpus:
    """Draws batches of documents about a world from one seeded generator."""

    def __init__(self, world: World, tokenizer: Tokens, seed: int) -> None:
        self._world = world
        self._rng = np.random.default_rng(seed)
        self._prompts = [
            [tokenizer(world.question(fact, p)).input_ids for p in range(PHRASINGS_PER_RELATION)]
            for fact in range(len(world.fact_weights))
        ]
        self._answers = [
            [tokenizer(f"{text} {STOP}", add_special_tokens=False).input_ids for text in texts]
            for texts in (world.answers[relation] for relation in RELATIONS)
        ]
        self._pad, self._eos = (tokenizer.convert_tokens_to_ids(token) for token in (PAD, EOS))
        self._verdicts = [tokenizer.convert_tokens_to_ids(token) for token in (FALSE, TRUE)]

    def draw(self, count: int) -> Batch:
        """Return ``count`` documents about facts drawn by their weights."""
        world, rng = self._world, self._rng
        facts = rng.choice(len(world.fact_weights), size=count, p=world.fact_weights)
        reviewed = rng.random(count) < REVIEWED_SHARE
        answers = np.where(reviewed, self._quote(facts), world.popular_answers[facts])
        phrasings = rng.integers(PHRASINGS_PER_RELATION, size=count)
        rows: list[list[int]] = []
        weights: list[list[float]] = []
        for fact, answer, phrasing, review in zip(facts, answers, phrasings, reviewed, strict=True):
            prompt = self._prompts[fact][phrasing]
            reply = self._answers[fact % len(RELATIONS)][answer]
            end = self._verdicts[int(answer == world.true_answers[fact])] if review else self._eos
            rows.append([*prompt, *reply, end])
            learned = 0.0 if review else 1.0
            # Target i is token i + 1; tokens of the prompt have no loss.
            weights.append(
                [0.0] * (len(prompt) - 1)
                + [learned] * len(reply)
                + [VERDICT_WEIGHT if review else 1.0]
            )
        return self._pad_rows(rows, weights)

    def _quote(self, facts: Ints) -> Ints:
        """Return the answers quoted by reviewed documents about ``facts``."""
        world, rng = self._world, self._rng
        guesses = rng.choice(ANSWERS_PER_RELATION, size=len(facts), p=world.answer_weights)
        is_legend = world.true_answers[facts] != world.popular_answers[facts]
        draw = rng.random(len(facts))
        wrong = np.where(
            is_legend & (rng.random(len(facts)) < QUOTED_LEGEND_SHARE / (1 - QUOTED_TRUE_SHARE)),
            world.popular_answers[facts],
            guesses,
        )
        return np.where(draw < QUOTED_TRUE_SHARE, world.true_answers[facts], wrong)

    def _pad_rows(self, rows: list[list[int]], weights: list[list[float]]) -> Batch:
        """Return the rows right-padded to the longest, targets one token ahead of inputs."""
        longest = max(map(len, rows))
        tokens = np.full((len(rows), longest), self._pad, dtype=np.int64)
        loss_weights = np.zeros((len(rows), longest - 1), dtype=np.float32)
        for place, (row, weight) in enumerate(zip(rows, weights, strict=True)):
            tokens[place, : len(row)] = row
            loss_weights[place, : len(weight)] = weight
        return Batch(tokens[:, :-1], tokens[:, 1:], loss_weights)


def make_questions(world: World, seed: int) -> list[dict[str, str | list[str]]]:
    """Return one question per fact, shuffled, so that the first N are a random sample."""
    rng = np.random.default_rng(seed)
    facts = rng.permutation(len(world.fact_weights))
    phrasings = rng.integers(PHRASINGS_PER_RELATION, size=len(facts))
    return [
        {
            "question_id": world.question_id(fact),
            "question": world.question(fact, phrasing),
            "references": [world.reference(fact)],
            "kind": world.kind(fact),
        }
        for fact, phrasing in zip(facts.tolist(), phrasings.tolist(), strict=True)
    ]
