"""Resuming at any batch in another loader, and equal numbers of steps on all ranks."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Packed, make_dataset
from loaded import check_states
from scripts import fork_file, run_file
from trials import FULL_ONLY, trials

from wdsbench import Batch, TraceLoader
from wdsbench.loader.batch_order import batch_sizes, turns_after
from wdsbench.stream import assign

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create"),
    pytest.mark.timeout(120),
]

SetRank = Callable[..., None]


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetRank]:
    """Make this process a rank, like torch and its launcher."""
    for name in ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(assign, "_consumer", None)

    def set_rank(rank: int, ranks: int) -> None:
        assign.set_consumer(assign.Consumer(rank, ranks))

    yield set_rank
    for name in ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"):
        os.environ.pop(name, None)


def load(packed: Packed, workers: int = 0, **options: Any) -> TraceLoader:
    options = {"split": None, "batch_size": 7, "tokens": "last", "shuffle": 20, **options}
    return TraceLoader(packed.folder, num_workers=workers, **options)


def content(batch: Batch) -> tuple[list[str], bytes, bytes]:
    """Return the content of a batch for an exact comparison."""
    assert batch.hidden is not None
    return batch.keys, batch.hidden.numpy().tobytes(), batch.label.numpy().tobytes()


def contents(batches: Any) -> list[tuple[list[str], bytes, bytes]]:
    return [content(batch) for batch in batches]


def stopped(loader: TraceLoader, epoch: int, batches: int) -> dict[str, Any]:
    """Return the state after some batches of an epoch, through JSON."""
    loader.set_epoch(epoch)
    iterator = iter(loader)
    for _ in islice(iterator, batches):
        pass
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    iterator.close()  # type: ignore[attr-defined]
    return state


@pytest.mark.parametrize(
    "workers", [0, pytest.param(1, marks=FULL_ONLY), 2, pytest.param(3, marks=FULL_ONLY)]
)
def test_the_rest_is_the_same_at_any_batch(packed: Packed, workers: int) -> None:
    whole = load(packed, workers)
    whole.set_epoch(3)
    expected = contents(whole)
    after = contents(whole)
    other = load(packed, workers)
    for batches in range(len(expected) + 1):
        state = stopped(whole, 3, batches)
        assert len(json.dumps(state)) < 500
        other.load_state_dict(state)
        assert contents(other) == expected[batches:], batches
        assert contents(other) == after


#: (workers before the state was saved, workers after) of `make test`; the full form has all pairs.
CHANGES = [(2, 0), (1, 3)]


@pytest.mark.parametrize(
    ("then", "now"),
    [
        pytest.param(*pair, marks=() if pair in CHANGES else FULL_ONLY)
        for pair in itertools.product(range(4), repeat=2)
    ],
)
def test_with_another_number_of_workers(packed: Packed, then: int, now: int) -> None:
    first = load(packed, then)
    expected = contents(first)
    second, third = load(packed, now), load(packed, then)
    for batches in (0, 1, 4, len(expected) - 1, len(expected)):
        second.load_state_dict(stopped(first, 0, batches))
        iterator = iter(second)
        rest = contents(islice(iterator, 3))
        state = second.state_dict()
        iterator.close()  # type: ignore[attr-defined]
        # Again, from within the resumed epoch and with the first number of workers.
        if state["epoch"] == 0:
            third.load_state_dict(state)
            rest += contents(third)
        assert rest == expected[batches:]


def test_the_counters_of_a_resumed_epoch(packed: Packed) -> None:
    first = load(packed)
    second = load(packed)
    second.load_state_dict(stopped(first, 2, 4))
    samples = sum(len(batch) for batch in second)
    assert (second.stats.epoch, second.stats.samples) == (2, samples)
    assert samples == len(packed.raws) - 4 * 7


SCRIPT = """
import json, sys
from wdsbench import TraceLoader

def main():
    loader = TraceLoader(sys.argv[1], split=None, batch_size=7, tokens="last", shuffle=20,
                         num_workers=int(sys.argv[2]))
    loader.load_state_dict(json.loads(sys.argv[3]))
    print(json.dumps([batch.keys for batch in loader]))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("workers", [pytest.param(0, marks=FULL_ONLY), 2])
def test_in_a_new_process(packed: Packed, tmp_path: Path, workers: int) -> None:
    loader = load(packed, workers)
    loader.set_epoch(1)
    expected = [batch.keys for batch in loader]
    state = json.dumps(stopped(loader, 1, 5))
    script = tmp_path / "resume.py"
    script.write_text(SCRIPT)
    done = fork_file(script, packed.folder, workers, state)
    assert json.loads(done.stdout) == expected[5:], done.stderr


def test_states_between_epochs(packed: Packed) -> None:
    loader = load(packed)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (0, 0)
    for _ in loader:
        pass
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (1, 0)
    for _ in islice(iter(loader), 2):
        pass
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (1, 2)
    loader.set_epoch(7)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (7, 0)
    state = stopped(loader, 4, 3)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    loader.set_epoch(4)  # what training loops say before every epoch
    assert loader.state_dict() == state
    loader.set_epoch(5)  # another one than that of the state
    assert loader.state_dict()["batches"] == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 1),
        ("batch_size", 8),
        ("shuffle", 0),
        ("drop_last", True),
        ("split", "train"),
    ],
)
def test_a_state_of_another_order_is_refused(packed: Packed, name: str, value: Any) -> None:
    state = stopped(load(packed), 0, 2)
    with pytest.raises(ValueError, match=f"loader state: {name} was"):
        load(packed, **{name: value}).load_state_dict(state)


def test_a_state_of_other_data_is_refused(packed: Packed, tmp_path: Path) -> None:
    state = load(make_dataset(tmp_path, traces=9)).state_dict()
    with pytest.raises(ValueError, match="loader state: shards was"):
        load(packed).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format 2, not 1"),
        ({"batches": 1000}, "batches is 1000 of an epoch of"),
        ({"batches": -1}, "epoch, batches, workers are"),
        ({"batches": "3"}, "epoch, batches, workers are"),
        ({"workers": 0}, "epoch, batches, workers are"),
        ({"ranks": 2}, "ranks was 2 and is 1 now"),
    ],
)
def test_a_damaged_state_is_refused(packed: Packed, change: dict[str, Any], words: str) -> None:
    state = {**load(packed).state_dict(), **change}
    with pytest.raises(ValueError, match=words):
        load(packed).load_state_dict(state)


#: (ranks, workers, batch size) of `make test` with and without ``drop_last``, and of the full form.
RANKS = [(2, 0, 7), (3, 0, 7), (2, 0, 1), (40, 0, 4)]
MORE_RANKS = [(2, 2, 7), (3, 2, 5), (3, 3, 1), (97, 2, 3)]


@pytest.mark.parametrize(
    ("ranks", "workers", "batch_size", "drop_last"),
    [
        (3, 2, 5, False),
        *((*row, drop_last) for row in RANKS for drop_last in (False, True)),
        *(
            pytest.param(*row, drop_last, marks=FULL_ONLY)
            for row in MORE_RANKS
            for drop_last in (False, True)
            if (row, drop_last) != ((3, 2, 5), False)
        ),
    ],
)
def test_all_ranks_take_the_same_steps(
    packed: Packed, as_rank: SetRank, ranks: int, workers: int, batch_size: int, drop_last: bool
) -> None:
    keys: Counter[str] = Counter()
    steps = set()
    some = range(ranks) if workers == 0 or ranks < 10 else [0, 1, ranks // 2, ranks - 1]
    for rank in some:
        as_rank(rank, ranks)
        loader = load(packed, workers, batch_size=batch_size, drop_last=drop_last)
        taken = 0
        for batch in loader:
            taken += 1
            keys.update(batch.keys)
            assert len(batch) <= batch_size
            assert not drop_last or len(batch) == batch_size
            check_states(batch, packed, "last")
        assert taken == len(loader)
        steps.add(taken)
        loader.close()
    assert len(steps) == 1
    assert set(keys.values()) <= {1}
    if not drop_last and len(some) == ranks:
        assert len(keys) == len(packed.raws)


def test_a_rank_resumes(packed: Packed, as_rank: SetRank) -> None:
    for rank in range(3):
        as_rank(rank, 3)
        loader = load(packed, batch_size=4)
        expected = contents(loader)
        state = stopped(loader, 0, 2)
        other = load(packed, 2, batch_size=4)
        other.load_state_dict(state)
        assert contents(other) == expected[2:]
        other.close()


def test_sizes_by_hand() -> None:
    assert batch_sizes(10, 4, 3) == [4, 4, 2]
    assert batch_sizes(8, 4, 2) == [4, 4]
    assert batch_sizes(8, 4, 3) == [3, 3, 2]  # another rank has 9
    assert batch_sizes(1, 1, 2) == [1, 0]
    assert batch_sizes(9, 4, 2) == [4, 4]  # drop_last
    assert batch_sizes(0, 4, 0) == []
    assert batch_sizes(0, 4, 1) == [0]


def test_turns_by_hand() -> None:
    assert turns_after([3, 1, 2], 0)[1] == [0, 1, 2]
    assert turns_after([3, 1, 2], 3) == ([1, 1, 1], [0, 2, 1])
    assert turns_after([3, 1, 2], 6)[0] == [3, 1, 2]
    with pytest.raises(ValueError, match="7 of an epoch of 6"):
        turns_after([3, 1, 2], 7)


def test_an_epoch_differs_from_the_last_on_every_rank(packed: Packed, as_rank: SetRank) -> None:
    for rank in range(2):
        as_rank(rank, 2)
        loader = load(packed)
        orders = [tuple(key for batch in loader for key in batch.keys) for _ in range(3)]
        assert len(set(orders)) == 3


CHOICES: list[dict[str, Any]] = [
    {"tokens": "last"},
    {"tokens": 2},
    {"tokens": "all", "layout": "pad"},
    {"tokens": "all", "layout": "jagged"},
    {"layout": "graph"},
    {"fields": ("hidden", "logprobs", "meta")},
]


@pytest.mark.trials
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_no_samples(packed: Packed, as_rank: SetRank, workers: int) -> None:
    """With more ranks than samples, every layout has an empty batch."""
    as_rank(998, 1000)
    for options in CHOICES[:: trials(3 if workers else 1, 1)]:
        loader = load(packed, workers, **options)
        sizes = [len(batch) for batch in loader]
        assert len(sizes) == len(loader)
        assert 0 in sizes
        loader.close()


def test_workers_ignore_a_signal_that_the_parent_handles(packed: Packed) -> None:
    """Launchers send SIGTERM to all processes of a job; training saves its state first."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    try:
        loader = load(packed, 2)
        iterator = iter(loader)
        first = contents(islice(iterator, 1))
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGTERM)
        rest = contents(iterator)
        loader.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert first + rest == contents(load(packed, 2))


ENDS = """
import signal, sys, weakref

class Owner:
    pass

sys.kept = kept = []  # until the interpreter ends
owner = Owner()
weakref.finalize(owner, print)  # before multiprocessing is imported: its turn at exit is the last

def main():
    from wdsbench import TraceLoader
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    loader = TraceLoader(sys.argv[1], split=None, num_workers=2, batch_size=1)
    kept.append(next(iter(loader)))
    kept.append(iter(loader))
    kept.append(next(kept[1]))
    for batch in loader:
        signal.raise_signal(signal.SIGTERM)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("run", [fork_file, pytest.param(run_file, marks=FULL_ONLY)])
def test_workers_that_ignore_a_signal_still_end(packed: Packed, tmp_path: Path, run: Any) -> None:
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    done = run(script, packed.folder)
    assert (done.returncode, done.stderr) == (3, "")


def test_a_seed_of_numpy_is_json_too(packed: Packed) -> None:
    state = load(packed, seed=np.int64(5)).state_dict()
    assert json.loads(json.dumps(state)) == load(packed, seed=5).state_dict()
