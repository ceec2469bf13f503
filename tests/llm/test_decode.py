"""Answers by beam search and sampling, which do not depend on the batch."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llm.test_extract import assert_equals_lone_pass, read_all
from llm.tiny import MODELS, VOCABULARY, extract, make_model, make_questions, make_tokenizer
from transformers import RwkvConfig, RwkvForCausalLM
from trials import FULL_ONLY, trials

from wdsbench.llm.decode import _Draws, _ignores_padding, generate
from wdsbench.llm.options import Decoding


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


def answers(folder: Path) -> dict[tuple[str, int | None], list[int]]:
    return {
        (trace.question_id, trace.trace_number): trace.tokens[trace.prompt_length :].tolist()
        for trace in read_all(folder)
    }


@pytest.mark.parametrize("kind", ["llama", pytest.param("gpt2", marks=FULL_ONLY)])
@pytest.mark.parametrize(
    "decoding",
    [
        {"decode": "beam", "beams": 3},
        pytest.param({"decode": "sample", "seed": 5}, marks=FULL_ONLY),
        {"decode": "sample", "top_p": 0.8},
    ],
    ids=["beam", "sample", "nucleus"],
)
def test_batches_equal_lone_answers(
    kind: str, decoding: dict[str, Any], tokenizer: Any, tmp_path: Path
) -> None:
    model, questions = MODELS[kind](), make_questions(7)
    model.generation_config.eos_token_id = [VOCABULARY[name] for name in ("<eos>", "red", "who")]
    for size in (1, 4):
        extract(
            model,
            tokenizer,
            questions,
            tmp_path / str(size),
            batch_size=size,
            max_new_tokens=6,
            **decoding,
        )
    assert answers(tmp_path / "1") == answers(tmp_path / "4")
    assert len({len(answer) for answer in answers(tmp_path / "4").values()}) > 1
    for trace in read_all(tmp_path / "4"):  # log-probabilities are the model's own
        assert_equals_lone_pass(trace, model)


def test_the_models_and_the_tokenizers_end_tokens_end_an_answer(tokenizer: Any) -> None:
    """As in chat models whose tokenizer ends turns with a token of its own."""
    model = make_model()
    prompts = [tokenizer(question.question)["input_ids"] for question in make_questions(12)]
    lasts: dict[str | None, set[int]] = {}
    for own in (None, "red"):
        model.generation_config.eos_token_id = VOCABULARY["who"]
        turns = make_tokenizer(eos_token=own)
        found = list(generate(model, turns, prompts, 12, Decoding()))
        lasts[own] = {VOCABULARY["red"] in one.tokens for one in found}
        assert not any(VOCABULARY["who"] in one.tokens[:-1] for one in found)
        if own:
            assert not any(VOCABULARY["red"] in one.tokens[:-1] for one in found)
    assert lasts[None] == {True, False}


def make_rwkv() -> Any:
    """Return a recurrent model, which ignores the attention mask."""
    torch.manual_seed(0)
    config = RwkvConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=2,
        attention_hidden_size=16,
        intermediate_size=32,
        pad_token_id=VOCABULARY["<pad>"],
        bos_token_id=VOCABULARY["<bos>"],
        eos_token_id=VOCABULARY["<eos>"],
    )
    model = RwkvForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.trials
@pytest.mark.parametrize("method", ["greedy", pytest.param("sample", marks=FULL_ONLY)])
def test_models_that_read_padding_as_text(method: str, tokenizer: Any, tmp_path: Path) -> None:
    model, questions = make_rwkv(), make_questions(trials(4, 12))
    for size in (1, 5):
        extract(
            model,
            tokenizer,
            questions,
            tmp_path / str(size),
            batch_size=size,
            max_new_tokens=trials(5, 8),
            attention=(),
            decode=method,
        )
    assert answers(tmp_path / "5") == answers(tmp_path / "1")
    if method == "greedy":
        for trace in read_all(tmp_path / "5"):
            ids = torch.from_numpy(trace.tokens)[None]
            with torch.inference_mode():
                told = model(ids, use_cache=False).logits[0].argmax(-1).tolist()
            first = trace.prompt_length or 0
            assert trace.tokens[first:].tolist() == told[first - 1 : -1]


@pytest.mark.parametrize(("make", "ignores"), [(make_model, True), (make_rwkv, False)])
def test_padding_is_ignored_or_not(make: Any, ignores: bool, tokenizer: Any) -> None:
    assert _ignores_padding(make(), tokenizer, tokenizer("red who")["input_ids"]) is ignores


def test_beams_as_wide_as_the_vocabulary_find_the_best(tokenizer: Any) -> None:
    model = make_model()
    model.generation_config.eos_token_id = None
    endless = make_tokenizer(eos_token=None)
    everything = torch.tensor(list(itertools.product(VOCABULARY.values(), repeat=2)))
    for question in make_questions(4):
        prompt = tokenizer(question.question)["input_ids"]
        decoding = Decoding(decode="beam", beams=len(VOCABULARY))
        (found,) = generate(model, endless, [prompt], 2, decoding)
        rows = torch.cat([torch.tensor([prompt]).expand(len(everything), -1), everything], dim=1)
        with torch.inference_mode():
            logprobs = model(input_ids=rows).logits.log_softmax(-1)
        places = [len(prompt) - 1, len(prompt)]
        total = sum(
            logprobs[torch.arange(len(rows)), place, everything[:, step]]
            for step, place in enumerate(places)
        )
        assert isinstance(total, torch.Tensor)
        assert found.tokens == everything[total.argmax()].tolist()


def test_several_answers_to_a_question(tokenizer: Any, tmp_path: Path) -> None:
    """Numbered, in order, each reproducible alone, and different with another seed."""
    model, questions = make_model(), make_questions(4)
    for name, asked, seed, count in (
        ("all", questions, 1, 4),
        ("one", questions[2:3], 1, 2),
        ("other", questions[:2], 2, 4),
    ):
        extract(
            model,
            tokenizer,
            asked,
            tmp_path / name,
            batch_size=5,
            traces_per_file=8,
            max_new_tokens=6,
            decode="sample",
            seed=seed,
            answers_per_question=count,
        )
    found = answers(tmp_path / "all")
    assert list(found) == [(q.question_id, number) for q in questions for number in range(4)]
    for name, answer in answers(tmp_path / "one").items():
        assert found[name] == answer
    assert len({tuple(answer) for answer in found.values()}) > 8
    other = answers(tmp_path / "other")
    assert other != {name: found[name] for name in other}


@pytest.mark.trials
@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_draws_follow_the_distribution(temperature: float, top_p: float) -> None:
    """20,000 draws (quick: 2,000): shares within five standard deviations, all in the nucleus."""
    logits = torch.tensor([2.0, -torch.inf, 1.0, 0.5, 1.0, -3.0])
    wanted = torch.softmax(logits.double() / temperature, dim=0)
    order = wanted.argsort(descending=True, stable=True)
    inside = wanted[order].cumsum(0) - wanted[order] < top_p
    kept = torch.zeros_like(wanted).scatter(0, order[inside], wanted[order[inside]])
    kept /= kept.sum()
    draws = trials(2_000, 20_000)
    decoding = Decoding(decode="sample", temperature=temperature, top_p=top_p)
    processor = _Draws(decoding, [(str(number), 0) for number in range(draws)])
    scores = processor(None, logits.expand(draws, -1))
    assert torch.equal((scores == 0).sum(dim=1), torch.ones(draws, dtype=torch.int64))
    assert torch.isneginf(scores[scores != 0]).all()
    counts = Counter(scores.argmax(dim=1).tolist())
    for token, share in enumerate(kept.tolist()):
        deviation = np.sqrt(share * (1 - share) / draws)
        assert abs(counts[token] / draws - share) <= 5 * deviation


def test_the_smallest_nucleus_is_greedy(tokenizer: Any, tmp_path: Path) -> None:
    model, questions = make_model(), make_questions(6)
    extract(model, tokenizer, questions, tmp_path / "greedy")
    extract(
        model,
        tokenizer,
        questions,
        tmp_path / "sample",
        decode="sample",
        top_p=1e-9,
    )
    assert answers(tmp_path / "greedy") == answers(tmp_path / "sample")


# (arguments, words of the error)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"decode": "best"}, "decode is 'best'; expected one of greedy, beam, sample"),
    ({"beams": 1}, "beams is 1"),
    ({"temperature": 0.0}, "temperature is 0"),
    ({"temperature": float("nan")}, "temperature is nan"),
    ({"top_p": 0.0}, "top_p is 0"),
    ({"top_p": 1.5}, "top_p is 1.5"),
]


@pytest.mark.parametrize(("changes", "words"), BAD)
def test_bad_arguments(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Decoding(**changes)
