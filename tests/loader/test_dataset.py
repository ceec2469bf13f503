"""``TraceDataset``: single samples, each once, in a ``DataLoader`` of torch or webdataset."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from builders import LAYERS, Packed, make_dataset
from loaded import wanted
from torch.utils.data import DataLoader, IterableDataset
from trials import FULL_ONLY

from wdsbench import DecodeError, TraceDataset, TraceLoader

CHOICES: list[Any] = ["last", "last_answer", "answer", "all", 1, 3, 50, ("first", 1), ("first", 4)]


def check(sample: dict[str, Any], packed: Packed, tokens: Any = "last", layers: Any = None) -> str:
    """Compare a sample with its raw trace; return its question id."""
    question_id = str(sample["question_id"])
    raw, score = packed.raws[question_id], packed.scores[question_id]
    assert sample["score"].item() == np.float32(score)
    assert sample["label"].item() == float(score < 0.5)
    assert sample["label"].dtype == sample["score"].dtype == torch.float32
    assert sample["token_count"].item() == len(raw["tokens"])
    assert sample["prompt_length"].item() == raw["prompt_length"]
    assert sample["token_count"].dtype == sample["prompt_length"].dtype == torch.int64
    if "hidden" in sample:
        expected = wanted(packed, question_id, tokens, layers)
        if tokens in ("last", "last_answer"):
            expected = expected[:, 0]
        assert sample["hidden"].dtype == torch.float32
        np.testing.assert_array_equal(sample["hidden"].numpy(), expected)
    return question_id


@pytest.mark.parametrize(
    ("tokens", "layers", "threads"),
    [
        *((tokens, [2, 0], 3) for tokens in CHOICES),
        ("all", None, 3),
        *(
            pytest.param(tokens, layers, threads, marks=FULL_ONLY)
            for tokens in CHOICES
            for layers in (None, [2, 0], -1)
            for threads in (1, 3)
            if (layers, threads) != ([2, 0], 3) and (tokens, layers, threads) != ("all", None, 3)
        ),
    ],
)
def test_values(packed: Packed, tokens: Any, layers: Any, threads: int) -> None:
    dataset = TraceDataset(packed.folder, split=None, tokens=tokens, layers=layers, threads=threads)
    rows = [layers] if layers == -1 else layers
    seen = [check(sample, packed, tokens, rows) for sample in dataset]
    assert sorted(seen) == sorted(packed.raws)
    assert len(dataset) == 60


def test_samples_can_be_kept(packed: Packed) -> None:
    dataset = TraceDataset(packed.folder, split=None, tokens="all")
    kept = [sample for _ in range(3) for sample in dataset]
    for sample in kept:
        check(sample, packed, "all")
    kept[0]["hidden"].fill_(0)
    for sample in kept[1:]:
        check(sample, packed, "all")


def test_an_abandoned_iterator(packed: Packed) -> None:
    dataset = TraceDataset(packed.folder, split=None)
    for _ in range(5):
        left = iter(dataset)
        check(next(left), packed)
        del left
        assert sum(1 for _ in dataset) == 60


def test_two_iterators(packed: Packed) -> None:
    dataset = TraceDataset(packed.folder, split=None)
    pairs = list(zip(dataset, dataset, strict=True))
    assert {check(left, packed) for left, _ in pairs} == set(packed.raws)
    assert [left["key"] for left, _ in pairs] != [right["key"] for _, right in pairs]


def test_fields(packed: Packed) -> None:
    dataset = TraceDataset(packed.folder, split=None, fields=("logprobs", "meta"))
    for sample in dataset:
        assert set(sample) == {
            "key",
            "question_id",
            "label",
            "score",
            "token_count",
            "prompt_length",
            "logprobs",
            "meta",
        }
        raw = packed.raws[check(sample, packed)]
        np.testing.assert_array_equal(sample["logprobs"].numpy(), raw["token_logprobs"])
        assert sample["meta"]["tokens"] == raw["tokens"]
    assert "hidden" not in next(iter(TraceDataset(packed.folder, fields=())))


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_splits(packed: Packed, split: str) -> None:
    dataset = TraceDataset(packed.folder, split)
    loader = TraceLoader(packed.folder, split)
    keys = [sample["key"] for sample in dataset]
    assert len(keys) == len(dataset) == dataset.index.counts[split]
    assert sorted(keys) == sorted(key for batch in loader for key in batch.keys)


def keys_of(dataset: Any) -> list[str]:
    return [sample["key"] for sample in dataset]


def test_epochs(packed: Packed) -> None:
    dataset = TraceDataset(packed.folder, split=None, seed=3)
    first, second = keys_of(dataset), keys_of(dataset)
    assert first != second
    dataset.set_epoch(1)
    assert keys_of(dataset) == second
    again = TraceDataset(packed.folder, split=None, seed=3)
    assert keys_of(again) == first
    assert keys_of(TraceDataset(packed.folder, split=None, seed=4)) != first
    still = TraceDataset(packed.folder, split=None, shuffle=0)
    assert keys_of(still) == keys_of(still) == still.index.keys(np.arange(60))
    # The order is that of a TraceLoader.
    loader = TraceLoader(packed.folder, split=None, seed=3)
    assert first == [key for batch in loader for key in batch.keys]


def test_pickling(packed: Packed) -> None:
    dataset = TraceDataset(packed.folder, split=None, tokens="all", seed=1)
    expected = keys_of(dataset)
    again = pickle.loads(pickle.dumps(dataset))
    again.set_epoch(0)
    assert keys_of(again) == expected
    assert [check(sample, packed, "all") for sample in again]


@pytest.mark.parametrize(
    ("batch_size", "workers"),
    [
        (None, 0),
        (7, 0),
        (7, 2),
        *(pytest.param(*pair, marks=FULL_ONLY) for pair in ((None, 2), (1, 0), (1, 2))),
    ],
)
def test_default_collate(packed: Packed, workers: int, batch_size: int | None) -> None:
    dataset = TraceDataset(packed.folder, split=None)
    assert isinstance(dataset, IterableDataset)
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=workers)
    len(loader)
    seen = []
    for batch in loader:
        if batch_size is None:
            seen.append(check(batch, packed))
            continue
        assert batch["hidden"].shape[1:] == (LAYERS, 8)
        for i in range(len(batch["key"])):
            seen.append(check({name: value[i] for name, value in batch.items()}, packed))
    assert sorted(seen) == sorted(packed.raws)


def pad(samples: list[dict[str, Any]]) -> dict[str, Any]:
    longest = max(sample["hidden"].shape[1] for sample in samples)
    hidden = torch.zeros(len(samples), LAYERS, longest, 8)
    for i, sample in enumerate(samples):
        hidden[i, :, : sample["hidden"].shape[1]] = sample["hidden"]
    return {"hidden": hidden, "samples": samples}


@pytest.mark.parametrize(
    ("method", "tokens"),
    [
        ("fork", "answer"),
        *(pytest.param(method, "all", marks=FULL_ONLY) for method in ("fork", "spawn")),
    ],
)
def test_custom_collate(packed: Packed, method: str, tokens: str) -> None:
    dataset = TraceDataset(packed.folder, split=None, tokens=tokens)
    loader = DataLoader(
        dataset,
        batch_size=7,
        num_workers=2,
        collate_fn=pad,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    seen = []
    for batch in loader:
        for i, sample in enumerate(batch["samples"]):
            seen.append(check(sample, packed, tokens))
            count = sample["hidden"].shape[1]
            assert torch.equal(batch["hidden"][i, :, :count], sample["hidden"])
            assert not batch["hidden"][i, :, count:].any()
    assert sorted(seen) == sorted(packed.raws)


def test_set_epoch_reaches_new_workers(packed: Packed) -> None:
    dataset = TraceDataset(packed.folder, split="val")
    loader = DataLoader(dataset, batch_size=None, num_workers=1)
    first = keys_of(loader)
    assert keys_of(loader) == first  # copies that know nothing of earlier epochs
    dataset.set_epoch(1)
    second = keys_of(loader)
    assert second != first
    assert sorted(second) == sorted(first)
    lasting = DataLoader(
        TraceDataset(packed.folder, split="val"),
        batch_size=None,
        num_workers=1,
        persistent_workers=True,
    )
    assert [keys_of(lasting), keys_of(lasting)] == [first, second]


def test_after_reading_in_this_process(packed: Packed) -> None:
    # Workers are forked while this process has open shards, decode threads and an active iterator.
    dataset = TraceDataset(packed.folder, split=None, threads=2)
    here = iter(dataset)
    for _ in range(20):
        next(here)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert sorted(check(sample, packed) for sample in loader) == sorted(packed.raws)
    assert sum(1 for _ in here) == 40


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=FULL_ONLY)])
def test_in_a_web_loader(packed: Packed, workers: int) -> None:
    dataset = TraceDataset(packed.folder, split=None)
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=workers)
    shuffled = loader.shuffle(20).batched(7, partial=True)
    seen = []
    for batch in shuffled:
        seen += batch["question_id"] if isinstance(batch, dict) else batch[0]
    assert sorted(map(str, seen)) == sorted(packed.raws)


def test_hashes(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=20)
    options: dict[str, Any] = {"split": None, "tokens": "all", "verify": "hash"}
    dataset = TraceDataset(packed.folder, **options)
    assert sum(1 for _ in dataset) == 20
    index, row = dataset.index, 7
    shard = index.shard_path(int(index.columns["shard"][row]))
    with shard.open("r+b") as file:
        file.seek(int(index.member("hidden.npy", "offset")[row]) + 200)
        file.write(b"\x55")
    with pytest.raises(DecodeError, match="XXH3 differs") as caught:
        list(TraceDataset(packed.folder, **options))
    assert caught.value.member == index.member_name(row, "hidden.npy")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"split": "dev"}, "split 'dev'"),
        ({"tokens": 0}, "tokens: 0"),
        ({"shuffle": -1}, "shuffle is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"layers": [3]}, "3 is not one of the 3 stored"),
        ({"fields": ("x",)}, "'x' is not one of"),
        ({"verify": "x"}, "'x' is not one of"),
    ],
)
def test_wrong_arguments(packed: Packed, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TraceDataset(packed.folder, **arguments)
