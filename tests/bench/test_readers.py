"""Every competitor gives the same samples as the loader, so that rates are of the same work."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from wdsbench import TraceLoader
from wdsbench.bench import readers
from wdsbench.bench.data import PT_NAME, PT_SAMPLES, RAW_NAME, SHARDS_NAME, Shape, TraceShape
from wdsbench.bench.readers import ExpertReader, ExpertTraces

# webdataset leaves shards to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def sums(batches: Iterable[torch.Tensor | None]) -> list[float]:
    """Return every sample's sum, sorted: orders differ, zeros of padding do not count."""
    found: list[float] = []
    for batch in batches:
        assert batch is not None
        assert batch.dtype == torch.float32
        found += batch.reshape(len(batch), -1).double().sum(1).tolist()
    return sorted(round(value, 6) for value in found)


def test_equal_samples(data: Path, shape: Shape) -> None:
    shards, pt = data / SHARDS_NAME, data / PT_NAME
    states = (shape.layers, shape.features)
    expected = sums(batch.hidden for batch in TraceLoader(shards, batch_size=8))
    assert len(expected) == shape.samples
    expert = ExpertReader(data / RAW_NAME, states, 8)
    by_number = readers.PtMap(pt, shape.samples, PT_SAMPLES)
    assert sums(batch for batch, _ in expert) == expected
    assert sums(readers.webdataset_plain(shards, 8)) == expected
    assert sums(readers.webdataset_tuned(shards, 8, states)) == expected
    assert sums(readers.pt_iterable(pt, 8)) == expected
    assert sums(readers.pt_map(by_number, 8)) == expected
    with_workers = readers.webdataset_workers(shards, 8, 2)
    assert [sums(with_workers) for _ in range(2)] == [expected] * 2
    file_workers = readers.pt_iterable_workers(pt, 8, 2)
    assert sums(readers.states_of(file_workers)) == expected


def test_a_file_is_kept_until_another_is_asked_for(tmp_path: Path) -> None:
    for file in range(2):
        content = {"sequences": torch.full((3, 1, 1), file).half(), "labels": [0, 1, 0]}
        torch.save(content, tmp_path / f"{file}.pt")
    dataset = readers.PtMap(tmp_path, 6, 3)
    assert [dataset[number][0].item() for number in (0, 5, 2)] == [0, 1, 0]
    assert dataset[1][1] == 1.0
    (tmp_path / "0.pt").unlink()
    assert dataset[0][0].item() == 0
    dataset[4]
    with pytest.raises(FileNotFoundError):
        dataset[0]


def test_padded_traces(trace_data: Path, trace_shape: TraceShape) -> None:
    shards, sizes = trace_data / SHARDS_NAME, (trace_shape.layers, trace_shape.features)
    loader = TraceLoader(shards, tokens="all", layout="pad", batch_size=4)
    expected = sums(batch.hidden for batch in loader)
    assert len(expected) == trace_shape.samples
    assert sums(states for states, _ in expert(trace_data, trace_shape)) == expected
    assert sums(readers.webdataset_plain_padded(shards, 4)) == expected
    assert sums(readers.webdataset_tuned_padded(shards, 4, *sizes)) == expected


def test_last_tokens(trace_data: Path, trace_shape: TraceShape) -> None:
    shards, sizes = trace_data / SHARDS_NAME, (trace_shape.layers, trace_shape.features)
    expected = sums(batch.hidden for batch in TraceLoader(shards, batch_size=4))
    assert len(expected) == trace_shape.samples
    assert sums(expert(trace_data, trace_shape).last_tokens()) == expected
    assert sums(readers.webdataset_plain_last(shards, 4)) == expected
    assert sums(readers.webdataset_tuned_last(shards, 4, *sizes)) == expected


def test_the_expert_pads_as_the_loader_does(trace_data: Path, trace_shape: TraceShape) -> None:
    reader = expert(trace_data, trace_shape)
    for _ in range(3):  # over memory that earlier batches have written to
        for batch in TraceLoader(
            trace_data / SHARDS_NAME, tokens="all", layout="pad", batch_size=4
        ):
            rows = [int(question_id[1:]) for question_id in batch.question_ids]
            assert batch.hidden is not None
            assert torch.equal(reader.padded(rows), batch.hidden)


def expert(folder: Path, shape: TraceShape) -> ExpertTraces:
    return ExpertTraces(folder / RAW_NAME, shape.tokens, shape.layers, shape.features, 4)
