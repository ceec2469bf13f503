"""Controls are run with every detector; verdicts tell leaks in the text from signals in states."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train.planted import LAYER_SCALES, Sample, make_samples, store
from trials import full_only

from wdsbench import TraceLoader
from wdsbench.detect.registry import CONTROLS, TRACE_DETECTORS
from wdsbench.errors import DetectorError
from wdsbench.train.bootstrap import compare
from wdsbench.train.config import PredictOptions, TrainConfig
from wdsbench.train.controls import combined_scores, control_figures
from wdsbench.train.examples import Examples, with_groups
from wdsbench.train.metrics import auroc
from wdsbench.train.predict import find_checkpoint, predict
from wdsbench.train.ranks import ALONE
from wdsbench.train.results import Results, load_results
from wdsbench.train.run import train
from wdsbench.train.seeds import train_seeds
from wdsbench.train.source import Source

pytestmark = pytest.mark.usefixtures("no_plots")

CONFIG = TrainConfig(resamples=200, threads=1, torch_threads=1, device="cpu", batch_size=256)
TEXT = ("text_control", "question_control")
WORDS = ("red", "blue", "green", "old", "new", "tall", "wide", "cold")


def planted(
    count: int = 240,
    *,
    leak: float = 0.5,
    signal: float = 0.0,
    encoded: bool = False,
    seed: int = 0,
) -> list[Sample]:
    """Return traces whose answer says "perhaps" if they are hallucinated, and else "surely", with
    the probability ``leak``; ``encoded``: states have the ``signal`` of that word, not of the
    label.
    """
    generator = np.random.default_rng(seed)
    samples = []
    for sample in make_samples(count, signal=0.0, seed=seed, logprob_signal=0.0):
        perhaps = bool(sample.label) == (generator.random() < leak)
        words = " ".join(generator.choice(WORDS, 3))
        shift = (perhaps if encoded else sample.label) - 0.5
        hidden = sample.hidden.copy()
        hidden[:, -1, 0] += signal * shift * np.array(LAYER_SCALES)
        raw = {
            "generated_answer_clean": f"{'perhaps' if perhaps else 'surely'} {words}",
            "question": f"is it {generator.choice(WORDS)}?",
        }
        samples.append(replace(sample, hidden=hidden, raw=raw))
    return samples


def run(samples: list[Sample], out: Path, names: tuple[str, ...] = ("probe_logistic",)) -> Results:
    return train(store(samples, attention=()).folder, names, out, CONFIG)


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path, list[Sample]]:
    """Return a run on states that know the words of the answer, and nothing else."""
    out, samples = (
        tmp_path_factory.mktemp("leak"),
        planted(leak=0.85, signal=2.0, encoded=True, seed=2),
    )
    with pytest.MonkeyPatch.context() as patch:
        for plot in ("plot_roc", "plot_reliability", "plot_training"):
            patch.setattr(f"wdsbench.train.output.{plot}", lambda *_, **__: None)
        return run(samples, out, ("logprob_mean", "probe_logistic")), out, samples


Run = tuple[Results, Path, list[Sample]]


def test_controls_are_part_of_every_comparison(leaking: Run) -> None:
    results, out, _ = leaking
    assert list(results.detectors) == ["logprob_mean", "probe_logistic", *TEXT]
    assert results.not_available == {}  # without contexts there is no similarity
    assert load_results(out) == results
    assert not set(CONTROLS) & set(TRACE_DETECTORS)
    with (out / "scores.csv").open(newline="") as file:
        assert "text_control+probe_logistic" in next(csv.reader(file))


def test_a_probe_of_what_the_text_tells_adds_nothing(leaking: Run) -> None:
    results, out, _ = leaking
    probe, text = (results.detectors[name] for name in ("probe_logistic", "text_control"))
    assert probe.auroc_interval is not None
    assert text.auroc_interval is not None
    assert min(probe.auroc_interval[0], text.auroc_interval[0]) > 0.5
    assert probe.verdict == results.verdict == "leak"
    assert results.as_json()["verdict"] == "leak"
    assert probe.adds_to_text is not None
    assert probe.adds_to_text.interval[0] <= 0
    assert probe.difference_to_control is not None
    assert probe.difference_to_control.to == "text_control"
    assert probe.difference_to_control.difference == pytest.approx(probe.auroc - text.auroc)
    assert text.verdict is text.adds_to_text is text.difference_to_control is None
    assert results.best == "probe_logistic"
    said = (out / "report.md").read_text()
    assert "Verdict: leak. The words of the answers give the labels away: text_control" in said
    assert "Adding to the words: none. Not: logprob_mean, probe_logistic." in said


def test_states_without_a_leak_add(tmp_path: Path) -> None:
    results = run(planted(120, signal=6.0), tmp_path)
    probe = results.detectors["probe_logistic"]
    assert probe.verdict == results.verdict == "adds"
    assert probe.adds_to_text is not None
    assert probe.adds_to_text.interval[0] > 0.1
    assert abs(results.detectors["text_control"].auroc - 0.5) < 0.2
    assert "Verdict: adds. probe_logistic knows more" in (tmp_path / "report.md").read_text()


@full_only
def test_states_add_to_a_leak(tmp_path: Path) -> None:
    results = run(planted(leak=0.75, signal=3.0), tmp_path)
    text = results.detectors["text_control"]
    assert text.auroc_interval is not None
    assert text.auroc_interval[0] > 0.5
    assert results.verdict == "adds"


@full_only
def test_noise_has_no_verdict_but_none(tmp_path: Path) -> None:
    results = run(planted(seed=1), tmp_path, ("logprob_mean", "length"))
    assert [results.detectors[name].verdict for name in ("logprob_mean", "length")] == ["none"] * 2
    assert results.verdict == "none"
    assert "Verdict: none." in (tmp_path / "report.md").read_text()


def test_a_control_is_a_detector_like_others(leaking: Run) -> None:
    _, out, samples = leaking
    folder = store(samples, attention=()).folder
    with (out / "scores.csv").open(newline="") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    found = predict(out / "checkpoints" / "text_control", folder, PredictOptions(threads=1))
    assert len(found.samples) == len(rows)
    for sample in found.samples:
        assert sample.score == pytest.approx(float(rows[sample.key]["text_control"]), abs=1e-6)


@full_only
def test_a_control_that_is_named_is_no_other(leaking: Run, tmp_path: Path) -> None:
    results, _, samples = leaking
    folder = store(samples, attention=()).folder
    alone = train(folder, ("question_control",), tmp_path, CONFIG)
    again, before = (one.detectors["question_control"] for one in (alone, results))
    assert again.auroc == before.auroc
    assert alone.verdict == "leak"  # of the text control, which was added


def test_what_is_added_is_measured_on_the_same_resamples(leaking: Run) -> None:
    results, out, _ = leaking
    with (out / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("text_control", "probe_logistic", "text_control+probe_logistic")
    labels = [int(row["label"]) for row in rows]
    scores = {name: [float(row[name]) for row in rows] for name in names}
    found = compare(labels, scores, resamples=CONFIG.resamples)
    figures = control_figures(found, "probe_logistic", {"text_control": 0.9, "probe_logistic": 1})
    probe = results.detectors["probe_logistic"]
    for name, value in figures.items():
        assert getattr(probe, name) == value


def test_mean_over_seeds_is_compared_too(leaking: Run, tmp_path: Path) -> None:
    _, _, samples = leaking
    folder = store(samples, attention=()).folder
    results = train_seeds(folder, ("logprob_mean",), tmp_path, CONFIG, 2)
    runs = [load_results(tmp_path / f"seed-000{seed}") for seed in (0, 1)]
    assert list(results.detectors) == ["logprob_mean", *TEXT]
    found = results.detectors["logprob_mean"]
    assert found.adds_to_text is not None
    expected = [run.detectors["logprob_mean"].adds_to_text for run in runs]
    assert found.adds_to_text.difference == pytest.approx(
        np.mean([one.difference for one in expected if one is not None])
    )
    assert results.verdict == "leak"
    # A run of one detector has checkpoints of its controls, which are not meant.
    assert find_checkpoint(tmp_path / "seed-0000").name == "logprob_mean"


def without(samples: list[Sample], *names: str) -> list[Sample]:
    """Return the samples without keys of their raw traces (None: absent)."""
    return [replace(s, raw=s.raw | dict.fromkeys(names)) for s in samples]


def test_older_data_sets_have_a_reason(tmp_path: Path) -> None:
    samples = without(planted(80), "question", "tokens_decoded")
    results = run(samples, tmp_path, ("length",))
    assert list(results.not_available) == ["question_control"]
    assert "no question and no decoded prompt" in results.not_available["question_control"]


@full_only
def test_without_the_text_there_is_no_verdict(tmp_path: Path) -> None:
    samples = without(planted(80), "question", "generated_answer_clean")
    results = run([replace(s, prompt_length=-1) for s in samples], tmp_path)
    assert set(results.not_available) == set(TEXT)
    assert (results.verdict, results.detectors["probe_logistic"].verdict) == (None, None)
    assert "text_control could not be run" in (tmp_path / "report.md").read_text()


def test_similarity_of_answer_and_context(tmp_path: Path) -> None:
    samples = []
    for sample in planted(80):
        answer = sample.raw["generated_answer_clean"]
        other = "nobody said this" if sample.label else f"we know that {answer}"
        samples.append(replace(sample, raw=sample.raw | {"context": other}))
    results = run(samples, tmp_path, ("length",))
    assert list(results.detectors) == ["length", *TEXT, "similarity_control"]
    assert results.detectors["similarity_control"].auroc == 1
    assert results.detectors["similarity_control"].sign == -1
    length = results.detectors["length"].difference_to_control
    assert length is not None
    assert length.to == "similarity_control"


def grouped(**raw: Any) -> list[Sample]:
    """Return two groups; in "easy" the length tells the label, in "hard" its opposite."""
    samples = []
    for sample in make_samples(80, signal=0.0, seed=5, logprob_signal=0.0):
        hard = sample.number % 4 == 0
        logprobs = np.full_like(sample.logprobs, -1.0 - (sample.label != hard))
        group = {"group": "hard" if hard else "easy"}
        samples.append(replace(sample, logprobs=logprobs, raw=group | raw))
    return samples


def test_groups_that_are_stored(tmp_path: Path) -> None:
    figures = run(grouped(), tmp_path, ("logprob_mean",)).detectors["logprob_mean"]
    assert figures.groups is not None
    assert figures.groups.auroc == {"easy": 1.0, "hard": 0.0}
    assert (figures.groups.mean, figures.groups.one_class) == (0.5, 0)
    said = (tmp_path / "report.md").read_text()
    assert "| easy | 1.000 |" in said
    assert "AUROC within each of 2 groups" in said
    assert load_results(tmp_path).detectors["logprob_mean"] == figures


def test_groups_by_question_id() -> None:
    source = Source("x", replace(CONFIG, group_by_id="/"), "cpu", TraceLoader)
    examples = Examples(["k0", "k1", "k2"], ["a/1", "b/2/c", "a/3"], np.zeros(3))
    assert with_groups(examples, source, ALONE, {}).groups == ["a", "b", "a"]
    with pytest.raises(DetectorError, match="id 'c' does not contain '/'; --group-by-id"):
        with_groups(replace(examples, question_ids=["a/1", "c", "/"]), source, ALONE, {})
    with pytest.raises(ValueError, match="group_by_id is ''; it must be at least one character"):
        replace(CONFIG, group_by_id="")


def test_combination_is_not_upset_by_extremes() -> None:
    generator = np.random.default_rng(0)
    labels = generator.random(200) < 0.5
    text, own = (generator.normal(size=200) + labels for _ in range(2))
    huge = np.where(generator.random(200) < 0.02, -3e38, own)
    both = combined_scores(labels, (text, huge), (text, huge))
    assert np.isfinite(both).all()
    assert auroc(labels, both) > max(auroc(labels, text), auroc(labels, huge))
    constant = combined_scores(labels, (text, np.zeros(200)), (text, np.zeros(200)))
    assert auroc(labels, constant) == pytest.approx(auroc(labels, text))
