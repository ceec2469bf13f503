"""Quantised weights and layers spread over devices, by bitsandbytes and accelerate on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llm.tiny import extract
from trials import full_only

import wdsbench.demo
from wdsbench.llm.model import load_model
from wdsbench.llm.options import ModelOptions
from wdsbench.llm.questions import Question
from wdsbench.traces.read import read_traces

MODEL = Path(wdsbench.demo.__file__).parent / "model"
QUESTIONS = [Question(f"q{n}", text, ()) for n, text in enumerate(("Who is it?", "Where?", "Why"))]


def states_of(out: Path, **options: Any) -> list[np.ndarray[Any, Any]]:
    """Return the states of the prompts' tokens; answers may differ between models."""
    model, tokenizer = load_model(MODEL, ModelOptions(**options))
    report = extract(model, tokenizer, QUESTIONS, out, max_new_tokens=4, attention=())
    assert report.failed == 0
    traces = [trace for file in report.files for trace in read_traces(file)]
    assert len(traces) == len(QUESTIONS)
    return [trace.hidden[:, : trace.prompt_length].astype(np.float32) for trace in traces]


@full_only
@pytest.mark.parametrize(
    ("load_in", "layer"),
    [
        ("8bit", "Linear8bitLt"),
        ("4bit", "Linear4bit"),
    ],
)
def test_quantised_weights_give_states_close_to_the_models(
    load_in: str, layer: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("bitsandbytes")
    model, _ = load_model(MODEL, ModelOptions(load_in=load_in))
    assert layer in {type(module).__name__ for module in model.modules()}
    exact = states_of(tmp_path / "exact")
    quantised = states_of(tmp_path / "quantised", load_in=load_in)
    for own, other in zip(quantised, exact, strict=True):
        assert own.shape == other.shape
        assert not np.array_equal(own, other)
        assert np.corrcoef(own.ravel(), other.ravel())[0, 1] > 0.97
    assert "will be cast" not in capfd.readouterr().err


def test_layers_over_devices_give_the_models_states(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    exact = states_of(tmp_path / "exact")
    mapped = states_of(tmp_path / "mapped", device_map="auto")
    for own, other in zip(mapped, exact, strict=True):
        np.testing.assert_array_equal(own, other)
