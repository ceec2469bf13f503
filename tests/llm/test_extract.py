"""Extraction in batches equals single passes, in the raw format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llm.tiny import (
    FEATURES,
    HEADS,
    LAYERS,
    MODELS,
    VOCABULARY,
    extract,
    make_model,
    make_questions,
    make_tokenizer,
)
from trials import trials

import wdsbench
from wdsbench.errors import ModelError
from wdsbench.llm.model import load_model
from wdsbench.llm.questions import Question, read_questions
from wdsbench.records import Trace
from wdsbench.traces import check
from wdsbench.traces.files import expand_patterns, open_raw
from wdsbench.traces.read import read_traces
from wdsbench.traces.unpickle import load_pickle

DEMO = Path(wdsbench.__file__).parent / "demo"
EOS = VOCABULARY["<eos>"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def model() -> Any:
    return make_model()


def read_all(folder: Path) -> list[Trace]:
    return [trace for path in expand_patterns([folder]) for trace in read_traces(path)]


def read_raw(path: Path) -> Any:
    with open_raw(path) as stream:
        return load_pickle(stream)


def assert_equals_lone_pass(trace: Trace, model: Any) -> None:
    """Compare with a batch of one without padding, within float16's rounding and 1e-4."""
    with torch.inference_mode():
        out = model(
            input_ids=torch.from_numpy(trace.tokens)[None],
            output_hidden_states=True,
            output_attentions=True,
        )
    hidden = torch.stack(out.hidden_states[1:])[:, 0].numpy()
    maps = torch.stack(out.attentions)[:, 0].numpy()
    rounding = 2.0**-11
    assert trace.hidden.shape == hidden.shape
    assert np.all(np.abs(trace.hidden - hidden) <= rounding * np.abs(hidden) + 1e-4)
    assert trace.attentions is not None
    assert np.stack(trace.attentions).shape == maps.shape
    assert np.all(np.abs(np.stack(trace.attentions) - maps) <= rounding * maps + 1e-4)
    assert trace.prompt_length is not None
    logprobs = torch.log_softmax(out.logits[0], dim=-1)
    answer = trace.tokens[trace.prompt_length :]
    expected = logprobs[trace.prompt_length - 1 : -1].numpy()[np.arange(len(answer)), answer]
    assert trace.token_logprobs is not None
    assert np.allclose(trace.token_logprobs, expected, atol=1e-4)


def lone_answer(prompt: list[int], model: Any, steps: int) -> list[int]:
    """Return the greedy answer by one full pass per token without a cache."""
    tokens = list(prompt)
    for _ in range(steps):
        with torch.inference_mode():
            best = int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax())
        if best == EOS:
            break
        tokens.append(best)
    return tokens[len(prompt) :] or [EOS]


@pytest.mark.parametrize("kind", MODELS)
def test_batches_equal_lone_passes(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    model = MODELS[kind]()
    questions = make_questions(11)
    report = extract(
        model,
        tokenizer,
        questions,
        tmp_path,
        batch_size=4,
        max_new_tokens=6,
        traces_per_file=5,
    )
    traces = read_all(tmp_path)
    assert [path.name for path in report.files] == [
        "batch_0001.pkl.gz",
        "batch_0002.pkl.gz",
        "batch_0003.pkl.gz",
    ]
    assert [trace.question_id for trace in traces] == [q.question_id for q in questions]
    assert (report.traces, report.tokens) == (11, sum(len(trace.tokens) for trace in traces))
    assert len({len(trace.tokens) for trace in traces}) > 5  # otherwise nothing was padded
    for trace, question in zip(traces, questions, strict=True):
        prompt = tokenizer(question.question)["input_ids"]
        assert trace.prompt_length == len(prompt)
        assert trace.tokens.tolist() == prompt + lone_answer(prompt, model, 6)
        assert trace.remarks == ()
        assert_equals_lone_pass(trace, model)


def test_raw_format(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    (question,) = make_questions(1)
    extract(model, tokenizer, [question], tmp_path, max_new_tokens=3)
    (raw,) = read_raw(tmp_path / "batch_0001.pkl.gz")
    count, prompt = len(raw["tokens"]), raw["prompt_length"]
    assert set(raw) == {
        "hidden_states",
        "attentions",
        "tokens",
        "tokens_decoded",
        "generated_answer_clean",
        "question_id",
        "question",
        "prompt_length",
        "token_logprobs",
    }
    assert raw["question"] == question.question
    for name, shape in (
        ("hidden_states", (count, FEATURES)),
        ("attentions", (HEADS, count, count)),
    ):
        assert [(layer.dtype, layer.shape) for layer in raw[name]] == [(np.float16, shape)] * LAYERS
    assert all(type(token) is int for token in raw["tokens"])
    assert raw["tokens_decoded"] == tokenizer.convert_ids_to_tokens(raw["tokens"])
    assert raw["generated_answer_clean"] == " ".join(raw["tokens_decoded"][prompt:])
    assert (raw["token_logprobs"].dtype, raw["token_logprobs"].shape) == (
        np.float32,
        (count - prompt,),
    )


def test_same_questions_same_bytes(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        extract(
            model, tokenizer, make_questions(6), tmp_path / name, batch_size=4, max_new_tokens=4
        )
    ours, theirs = (tmp_path / name / "batch_0001.pkl.gz" for name in ("a", "b"))
    assert ours.read_bytes() == theirs.read_bytes()


def test_answers_end_before_the_end_of_sequence(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """For any end token; an answer of that token alone keeps it."""
    questions = make_questions(12)
    model.generation_config.eos_token_id = None
    tokenizer = make_tokenizer(eos_token=None)
    extract(model, tokenizer, questions, tmp_path / "endless", max_new_tokens=5)
    endless = [
        trace.tokens[trace.prompt_length :].tolist() for trace in read_all(tmp_path / "endless")
    ]
    assert all(len(answer) == 5 for answer in endless)
    ends = [endless[0][0], next(a[2] for a in endless if a[2] not in (a[0], a[1], endless[0][0]))]
    model.generation_config.eos_token_id = ends

    report = extract(model, tokenizer, questions, tmp_path / "ended", max_new_tokens=5)
    empty = unfinished = 0
    for trace, answer in zip(read_all(tmp_path / "ended"), endless, strict=True):
        stop = next((i for i, token in enumerate(answer) if token in ends), None)
        expected = answer[:1] if stop == 0 else answer[:stop]
        assert trace.tokens[trace.prompt_length :].tolist() == expected
        assert (trace.answer == "") == (stop == 0)
        empty += stop == 0
        unfinished += stop is None
    assert empty >= 1
    assert (report.empty_answers, report.unfinished_answers) == (empty, unfinished)


def test_the_models_own_sampling_settings_do_not_matter(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    questions = make_questions(5)
    extract(model, tokenizer, questions, tmp_path / "a", max_new_tokens=5)
    model.generation_config.update(do_sample=True, temperature=5.0, repetition_penalty=9.0)
    extract(model, tokenizer, questions, tmp_path / "b", max_new_tokens=5)
    first, second = read_all(tmp_path / "a"), read_all(tmp_path / "b")
    assert [t.tokens.tolist() for t in first] == [t.tokens.tolist() for t in second]


def test_states_beyond_float16_stay_float32(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    model.model.norm.weight.data.fill_(60_000.0)
    questions = make_questions(6)
    report = extract(model, tokenizer, questions, tmp_path, max_new_tokens=2)
    traces = read_all(tmp_path)
    assert report.wide_traces == sum(trace.hidden.dtype == np.float32 for trace in traces) > 0
    wide = next(trace for trace in traces if trace.hidden.dtype == np.float32)
    assert np.isfinite(wide.hidden).all()
    assert np.abs(wide.hidden).max() > 65504


def test_nan_states_are_refused(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    model.model.layers[1].mlp.up_proj.weight.data.fill_(float("nan"))
    words = "question q0, layer 1: the model's states are NaN"
    with pytest.raises(ModelError, match=words):
        extract(model, tokenizer, make_questions(1), tmp_path, on_error="fail")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ModelError, match=f"none of 3 questions gave a trace; the first: {words}"):
        extract(model, tokenizer, make_questions(3), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["failures.jsonl"]
    with pytest.raises(ModelError, match=f"the first 70 questions all failed; the last.*{words}"):
        extract(
            model, tokenizer, [make_questions(1)[0]] * 80, tmp_path, batch_size=35, max_new_tokens=1
        )


def test_chosen_layers_equal_those_of_all(tokenizer: Any, tmp_path: Path) -> None:
    """States, maps and reduced maps; the trace names its layers."""
    questions = make_questions(5)
    for name, layers in (("all", None), ("some", [2, 0])):
        extract(
            make_model(),
            tokenizer,
            questions,
            tmp_path / name,
            batch_size=3,
            max_new_tokens=4,
            attention=("full", "edges", "heads", "sketch"),
            layers=layers,
        )
    for whole, some in zip(read_all(tmp_path / "all"), read_all(tmp_path / "some"), strict=True):
        assert np.array_equal(some.hidden, whole.hidden[[0, 2]])
        assert some.attentions is not None
        assert whole.attentions is not None
        for ours, theirs in zip(some.attentions, whole.attentions[::2], strict=True):
            assert np.array_equal(ours, theirs)
        assert some.reduced is not None
        assert whole.reduced is not None
        assert some.reduced.num_layers == 2
        assert some.reduced.sketch is not None
        assert whole.reduced.sketch is not None
        assert np.array_equal(some.reduced.sketch, whole.reduced.sketch[::2], equal_nan=True)
    assert [raw["layers"] for raw in read_raw(tmp_path / "some" / "batch_0001.pkl.gz")] == (
        [[0, 2]] * 5
    )


@pytest.mark.trials
@pytest.mark.parametrize("file_format", ["safetensors", "npz"])
def test_other_files_hold_the_same(file_format: str, tokenizer: Any, tmp_path: Path) -> None:
    questions = make_questions(4)
    for name in ("pkl.gz", file_format):
        extract(
            make_model(),
            tokenizer,
            questions,
            tmp_path / name,
            max_new_tokens=trials(4, 32),
            traces_per_file=2,
            attention=("full", "edges"),
            layers=[0, 2],
            decode="sample",
            answers_per_question=2,
            file_format=name,
        )
    assert {path.name for path in (tmp_path / file_format).iterdir()} == {
        f"batch_000{number}.{file_format}" for number in (1, 2, 3, 4)
    }
    pairs = zip(read_all(tmp_path / "pkl.gz"), read_all(tmp_path / file_format), strict=True)
    for first, second in pairs:
        assert np.array_equal(first.hidden, second.hidden)
        assert first.attentions is not None
        assert second.attentions is not None
        assert np.array_equal(np.stack(first.attentions), np.stack(second.attentions))
        assert first.reduced is not None
        assert second.reduced is not None
        assert first.reduced.edges is not None
        assert second.reduced.edges is not None
        assert np.array_equal(first.reduced.edges.index, second.reduced.edges.index)
        for name in ("question_id", "trace_number", "answer", "prompt_length", "token_texts"):
            assert getattr(first, name) == getattr(second, name)
        assert first.layers == second.layers == (0, 2)
        assert np.array_equal(first.tokens, second.tokens)
        assert np.array_equal(first.token_logprobs, second.token_logprobs)  # type: ignore[arg-type]


@pytest.mark.trials
@pytest.mark.parametrize("tokens", ["answer", "last"])
def test_states_of_some_tokens_are_slices_of_all(
    tokens: str, tokenizer: Any, tmp_path: Path
) -> None:
    """Nothing else changes."""
    questions = make_questions(trials(8, 23))
    options: dict[str, Any] = {
        "batch_size": 5,
        "max_new_tokens": trials(6, 32),
        "attention": ("full", "edges", "sketch"),
    }
    model = make_model()
    model.generation_config.eos_token_id = [VOCABULARY[name] for name in ("<eos>", "red", "who")]
    for kept in ("all", tokens):
        extract(model, tokenizer, questions, tmp_path / kept, tokens=kept, **options)
    traces = list(zip(read_all(tmp_path / "all"), read_all(tmp_path / tokens), strict=True))
    for whole, some in traces:
        assert whole.prompt_length is not None
        answer = len(whole.tokens) - whole.prompt_length
        count = 1 if tokens == "last" else answer
        assert some.hidden.dtype == whole.hidden.dtype == np.float16
        assert np.array_equal(some.hidden, whole.hidden[:, len(whole.tokens) - count :])
        assert some.remarks == (
            (check.REMARK_ANSWER_STATES if tokens == "answer" else check.REMARK_LAST_TOKEN_STATES),
        )
        for name in ("tokens", "token_logprobs"):
            assert np.array_equal(getattr(some, name), getattr(whole, name))
        for name in ("prompt_length", "answer", "token_texts", "question_id", "layers"):
            assert getattr(some, name) == getattr(whole, name)
        assert some.attentions is not None
        assert whole.attentions is not None
        assert np.array_equal(np.stack(some.attentions), np.stack(whole.attentions))
        assert some.reduced is not None
        assert whole.reduced is not None
        assert np.array_equal(some.reduced.sketch, whole.reduced.sketch, equal_nan=True)  # type: ignore[arg-type]
    lengths = {some.hidden.shape[1] for _, some in traces}
    assert lengths == {1} if tokens == "last" else len(lengths) > trials(2, 3)


def test_states_of_an_empty_answer_are_those_of_its_end(tokenizer: Any, tmp_path: Path) -> None:
    model, questions = make_model(), make_questions(3)
    model.generation_config.eos_token_id = list(range(len(VOCABULARY)))  # any token ends it
    for tokens in ("all", "answer"):
        report = extract(model, tokenizer, questions, tmp_path / tokens, tokens=tokens)
        assert report.empty_answers == 3
    for whole, one in zip(read_all(tmp_path / "all"), read_all(tmp_path / "answer"), strict=True):
        assert np.array_equal(one.hidden, whole.hidden[:, -1:])
        assert one.remarks == (check.REMARK_ANSWER_STATES,)


def test_template(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    questions = [Question("a", "red {question}", ())]
    extract(model, tokenizer, questions, tmp_path, template="who is {question} ?")
    (trace,) = read_all(tmp_path)
    assert trace.token_texts[:6] == ["<bos>", "who", "is", "red", "<unk>", "?"]


def test_a_filled_folder_is_protected(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    questions = make_questions(4)
    extract(model, tokenizer, questions, tmp_path, traces_per_file=2, max_new_tokens=2)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="holds 2 batch files already"):
        extract(model, tokenizer, questions[:1], tmp_path)
    assert len(read_all(tmp_path)) == 4
    extract(model, tokenizer, questions[:1], tmp_path, overwrite=True)
    assert len(read_all(tmp_path)) == 1
    assert (tmp_path / "notes.txt").exists()


def test_progress_counts_batches(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    seen = []

    def progress(items: Any, total: int | None, what: str) -> Any:
        seen.append((total, what))
        return items

    sizes = {"batch_size": 2, "max_new_tokens": 2, "traces_per_file": 5}
    extract(model, tokenizer, make_questions(7), tmp_path, **sizes, progress=progress)
    assert seen == [(3 + 1, "extracting")]


def test_threads_are_restored(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        extract(model, tokenizer, make_questions(1), tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.trials
def test_embedded_model(tmp_path: Path) -> None:
    model, tokenizer = load_model(DEMO / "model")
    questions = read_questions(DEMO / "questions.jsonl.gz", limit=trials(5, 40))
    report = extract(
        model, tokenizer, questions, tmp_path, batch_size=trials(3, 8), max_new_tokens=trials(6, 32)
    )
    traces = read_all(tmp_path)
    assert report.wide_traces == 0
    assert len({len(trace.tokens) for trace in traces}) > 1
    for trace in traces:
        assert_equals_lone_pass(trace, model)
