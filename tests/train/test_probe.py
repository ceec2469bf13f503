"""Probes find the layer and the token in which a signal was planted, for any division of the data
into reads and ranks.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import FEATURES, HEADS, LAYERS, make_raw, write_pickle, write_scores
from train.probing import (
    CONFIG,
    LAYER,
    PLACES,
    Alone,
    Opener,
    auroc_on_test,
    pack_planted,
    pack_scored,
)
from trials import FULL, FULL_ONLY, full_only, trials

from wdsbench import TraceLoader
from wdsbench.detect.registry import LoaderNeeds, detector_spec
from wdsbench.errors import DetectorError
from wdsbench.pack import PackOptions, pack
from wdsbench.records import Batch
from wdsbench.train import solvers
from wdsbench.train.fitted import FittedDetector
from wdsbench.train.probe import fit_probe


@pytest.fixture(scope="module", autouse=True)
def few_turns() -> Iterator[None]:
    """Train the hidden layer for a few turns; the signals are strong."""
    with pytest.MonkeyPatch.context() as patch:
        if not FULL:
            patch.setattr(solvers, "TURN_STEPS", 8)
            patch.setattr(solvers, "LEARNING_RATE", 1e-2)
            patch.setattr(solvers, "WEIGHT_DECAYS", (0.1,))
        patch.setattr(solvers, "SCREEN_TURNS", trials(2, solvers.SCREEN_TURNS))
        patch.setattr(solvers, "MLP_TURNS", trials(16, solvers.MLP_TURNS))
        yield


@pytest.fixture(scope="module")
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return request.param, pack_planted(tmp_path_factory.mktemp("planted"), request.param)


@pytest.mark.trials
@pytest.mark.parametrize(
    ("planted", "name"),
    [
        ("last_prompt", "probe_logistic"),
        *(
            pytest.param(*case, marks=FULL_ONLY)
            for case in (
                *((token, "probe_logistic") for token in PLACES if token != "last_prompt"),
                *((token, "probe_mlp") for token in PLACES),
            )
        ),
    ],
    indirect=["planted"],
)
def test_layer_and_token_are_found(planted: tuple[str, Path], name: str) -> None:
    token, shards = planted
    fitted = fit_probe(detector_spec(name), Opener(shards), config=CONFIG)
    assert fitted.chosen == {"layer": LAYER, "token": token}
    assert fitted.layers == (LAYER,)
    assert fitted.shape is not None
    assert (fitted.shape.num_layers, fitted.shape.num_features) == (1, FEATURES)
    assert fitted.traces is not None
    assert (fitted.traces.num_layers, fitted.traces.num_heads) == (LAYERS, HEADS)
    assert auroc_on_test(fitted, shards) > 0.9


def same(one: FittedDetector, other: FittedDetector) -> bool:
    assert one.module is not None
    assert other.module is not None
    weights, others = one.module.state_dict(), other.module.state_dict()
    return one.chosen == other.chosen and all(
        torch.equal(weights[name], others[name]) for name in weights
    )


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_planted(tmp_path_factory.mktemp("shards"), "first_answer", signal=1.5)


@pytest.fixture(scope="module")
def alone(shards: Path) -> Alone:
    @functools.cache
    def fitted(name: str) -> tuple[FittedDetector, Opener]:
        opener = Opener(shards)
        return fit_probe(detector_spec(name), opener, config=CONFIG), opener

    return fitted


@pytest.mark.parametrize("name", ["probe_logistic", pytest.param("probe_mlp", marks=FULL_ONLY)])
def test_memory_decides_how_often_is_read_and_nothing_else(
    shards: Path, alone: Alone, name: str
) -> None:
    # Two layers of about 200 samples at a time: states of four tokens (twice) and a few batches.
    answers = 6
    two = 2 * 4 * FEATURES * (2 * 4 * 210 + 3 * CONFIG.batch_size * (answers + 1)) + 4 * 210 * 32
    found = {}
    for budget, chunks in ((None, 1), (two, 2), (1, LAYERS)):
        if budget is None:
            found[chunks], opener = alone(name)
        else:
            opener = Opener(shards)
            spec = detector_spec(name)
            found[chunks] = fit_probe(spec, opener, config=CONFIG, memory_bytes=budget)
        read = [layers for split, needs, layers in opener.asked if needs.fields and split == "val"]
        assert len(read) == chunks
        assert [layer for layers in read for layer in layers or ()] == list(range(LAYERS))
    assert same(found[1], found[2])
    assert same(found[1], found[LAYERS])


def test_only_the_end_of_a_sequence_is_read(shards: Path) -> None:
    opener = Opener(shards)
    fit_probe(detector_spec("probe_logistic"), opener, config=CONFIG)
    with opener("train", LoaderNeeds()) as loader:
        longest = max(int((b.token_count - b.prompt_length).max()) for b in loader)
    (needs,) = {needs for split, needs, _ in opener.asked if needs.fields and split == "train"}
    assert (needs.tokens, needs.layout) == (longest + 1, "jagged")


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("last_answer", marks=FULL_ONLY),
        "first_answer",
        pytest.param("mean_answer", marks=FULL_ONLY),
    ],
)
def test_states_of_answers_alone_do(tmp_path: Path, token: str) -> None:
    """The prompt's last token is no candidate then; all others are as with all states."""
    found, count = {}, trials(140, 240)
    for name, cut in (("whole", False), ("cut", True)):
        opener = Opener(pack_planted(tmp_path / name, token, cut=cut, count=count))
        found[name] = fit_probe(detector_spec("probe_logistic"), opener, config=CONFIG)
        assert found[name].chosen == {"layer": LAYER, "token": token}
        (wanted,) = {n.tokens for split, n, _ in opener.asked if n.fields and split == "train"}
        assert (wanted == "answer") == cut
    assert same(found["whole"], found["cut"])
    assert auroc_on_test(found["cut"], tmp_path / "cut" / "shards") > 0.9


@full_only
def test_another_seed_is_another_result(shards: Path, alone: Alone) -> None:
    """That the same seed is the same result, the fits with less memory have shown."""
    spec = detector_spec("probe_mlp")
    other = fit_probe(spec, Opener(shards), config=replace(CONFIG, seed=1))
    assert not same(alone("probe_mlp")[0], other)


def test_only_layers_of_the_run_are_tried(shards: Path) -> None:
    opener = Opener(shards)
    config = replace(CONFIG, layers=(-1, 0))
    fitted = fit_probe(detector_spec("probe_logistic"), opener, config=config)
    assert fitted.layers in ((0,), (LAYERS - 1,))
    read = {layer for _, needs, layers in opener.asked if needs.fields for layer in layers or ()}
    assert read == {0, LAYERS - 1}


def test_without_prompt_lengths_the_last_token_is_left(tmp_path: Path) -> None:
    shards = pack_planted(tmp_path, "last_answer", prompts=False)
    opener = Opener(shards)
    fitted = fit_probe(detector_spec("probe_logistic"), opener, config=CONFIG)
    assert fitted.chosen == {"layer": LAYER, "token": "last_answer"}
    assert {needs.tokens for _, needs, _ in opener.asked} == {"last_answer"}
    with pytest.raises(DetectorError, match=r"not available: trace .* has no known prompt length"):
        fit_probe(detector_spec("attention_logistic"), Opener(shards), config=CONFIG)


@pytest.mark.trials
def test_what_no_line_separates_is_for_the_hidden_layer(tmp_path: Path) -> None:
    shards = pack_planted(tmp_path, "last_answer", exclusive_or=True, count=trials(200, 400))
    config = replace(CONFIG, hidden=64, layers=None if FULL else (LAYER,))
    found = {
        name: auroc_on_test(fit_probe(detector_spec(name), Opener(shards), config=config), shards)
        for name in ("probe_logistic", "probe_mlp")
    }
    assert found["probe_mlp"] > 0.9
    assert found["probe_logistic"] < 0.75


@pytest.fixture(scope="module")
def looking_back(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces whose answers look back to the prompt more where the label is 0."""
    folder = tmp_path_factory.mktemp("looking_back")
    rng = np.random.default_rng(3)
    raws, scores = [], {}
    for number in range(240):
        raw = make_raw(f"q{number}", seed=number)
        label, prompt = int(rng.integers(2)), raw["prompt_length"]
        weights = raw["attentions"][LAYER].astype(np.float64)
        weights[:, prompt:, :prompt] *= 0.6 if label else 1.4
        weights /= weights.sum(axis=-1, keepdims=True)
        raw["attentions"][LAYER] = weights.astype(np.float16)
        raws.append(raw)
        scores[raw["question_id"]] = 1.0 - label
    return pack_scored(folder, raws, scores)


@pytest.mark.parametrize("layers", [pytest.param(None, marks=FULL_ONLY), (0, LAYER)])
def test_attention_is_found(looking_back: Path, layers: tuple[int, ...] | None) -> None:
    config = replace(CONFIG, layers=layers)
    opener = Opener(looking_back)

    def open_split(split: str, needs: LoaderNeeds, asked: Sequence[int] | None = None) -> Any:
        return opener(split, needs, layers if asked is None else asked)

    fitted = fit_probe(detector_spec("attention_logistic"), open_split, config=config)
    assert fitted.shape is not None
    assert (fitted.shape.num_layers, fitted.shape.num_heads) == (
        LAYERS if layers is None else len(layers),
        HEADS,
    )
    assert fitted.layers == layers
    assert fitted.chosen == {}
    assert auroc_on_test(fitted, looking_back) > 0.9
    assert not any("hidden" in needs.fields for _, needs, _ in opener.asked)


class Exchange:
    """Lets threads gather like ranks."""

    def __init__(self, ranks: int) -> None:
        self._values: list[Any] = [None] * ranks
        self._all_here = threading.Barrier(ranks)

    def of(self, rank: int) -> Callable[[Any], list[Any]]:
        def gather(value: Any) -> list[Any]:
            self._values[rank] = value
            self._all_here.wait(timeout=60)
            found = list(self._values)
            self._all_here.wait(timeout=60)
            return found

        return gather


def on_ranks(spec_name: str, shards: Path, ranks: int) -> list[FittedDetector]:
    """Fit on several ranks, each with every ``ranks``-th batch and one more of nothing."""
    exchange = Exchange(ranks)
    found: list[Any] = [None] * ranks

    def work(rank: int) -> None:
        @contextlib.contextmanager
        def open_split(
            split: str, needs: LoaderNeeds, layers: Sequence[int] | None = None
        ) -> Iterator[Any]:
            with Opener(shards)(split, needs, layers) as loader:
                yield Share(loader, rank, ranks)

        found[rank] = fit_probe(
            detector_spec(spec_name), open_split, config=CONFIG, gather=exchange.of(rank)
        )

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@dataclass
class Share:
    """A rank's batches."""

    loader: TraceLoader
    rank: int
    ranks: int

    @property
    def index(self) -> Any:
        return self.loader.index

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(self.loader):
            if (-number) % self.ranks == self.rank:
                yield batch
        nothing = torch.zeros(0)
        none = torch.zeros(0, dtype=torch.int64)
        yield Batch(nothing, nothing, none, none, [], [])


@pytest.mark.parametrize("name", ["probe_logistic", "attention_logistic"])
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=FULL_ONLY), 3])
def test_ranks_fit_the_union(shards: Path, alone: Alone, name: str, ranks: int) -> None:
    whole, _ = alone(name)
    assert all(same(fitted, whole) for fitted in on_ranks(name, shards, ranks))


def test_no_label_is_an_error(tmp_path: Path) -> None:
    raws = [make_raw(f"q{number}", seed=number) for number in range(40)]
    write_pickle(tmp_path / "t.pkl", raws)
    options = PackOptions(attention=(), missing_score="keep")
    scores = write_scores(tmp_path / "s.csv", {"other": 1.0})
    pack([str(tmp_path / "t.pkl")], tmp_path / "shards", scores=scores, options=options)
    with pytest.raises(DetectorError, match="no sample of split train has a label"):
        fit_probe(detector_spec("probe_logistic"), Opener(tmp_path / "shards"), config=CONFIG)
