"""Worker processes: what they read is what this process reads; they die when they should, and
nobody waits for the dead.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import Packed, make_dataset
from loaded import assert_same, by_sample, check_states, states_of, wanted
from scripts import TESTS, is_alive, open_files, run_file, until

from wdsbench import Batch, DecodeError, TraceLoader, WdsbenchError
from wdsbench.loader import team as team_module
from wdsbench.loader.decode import BatchDecoder
from wdsbench.loader.team import SLABS_EACH
from wdsbench.slabs import SharedSlab

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create"),
    pytest.mark.timeout(60),
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Samples of 128 kB as float32: slabs are worth their while."""
    folder = tmp_path_factory.mktemp("large")
    return make_dataset(folder, traces=80, layers=2, features=1024, tokens=16, shard_mb=1)


@pytest.fixture(autouse=True)
def no_workers_left() -> Iterator[None]:
    """Nobody of an earlier test is counted, and none is left to a later one."""
    assert none_left()
    yield
    assert none_left()


def none_left() -> bool:
    """Return whether the workers end, with the garbage where need be."""
    if multiprocessing.active_children():
        gc.collect()
    return until(lambda: not multiprocessing.active_children())


def load(packed: Packed, workers: int = 2, **options: Any) -> TraceLoader:
    options = {"split": None, "batch_size": 7, **options}
    return TraceLoader(packed.folder, num_workers=workers, **options)


def load_large(packed: Packed, workers: int = 2, **options: Any) -> TraceLoader:
    return load(packed, workers, **{"tokens": "all", "batch_size": 4, **options})


def pids() -> list[int]:
    return sorted(child.pid or 0 for child in multiprocessing.active_children())


def order(loader: TraceLoader) -> list[str]:
    return [key for batch in loader for key in batch.keys]


CHOICES: list[dict[str, Any]] = [
    {"tokens": "last"},
    {"tokens": "last", "layers": [2, 0, 0]},
    {"tokens": "all", "layout": "pad"},
    {"tokens": "answer", "layout": "jagged"},
    {"tokens": 2, "layout": "pad", "layers": -1},
    {"layout": "graph"},
    {"layout": "graph", "layers": [2, 0], "fields": ("logprobs", "meta")},
    {"fields": ("hidden", "logprobs", "meta")},
    {"fields": ("meta",)},
    {"fields": ()},
    {"tokens": "all", "layout": "pad", "verify": "hash"},
    {"layout": "graph", "verify": "hash"},
    {"tokens": "all", "layout": "jagged", "shuffle": 0},
    {"split": "val", "batch_size": 1000},
    {"drop_last": True, "batch_size": 1},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_same_as_without(packed: Packed, choice: dict[str, Any], workers: int) -> None:
    alone = by_sample(load(packed, 0, **choice))
    loader = load(packed, workers, **choice)
    for _ in range(2):
        assert_same(by_sample(loader), alone)
    if choice.get("split") is None:
        assert alone.keys() == packed.raws.keys()


@pytest.mark.parametrize("choice", [CHOICES[0], CHOICES[2], CHOICES[5]], ids=str)
def test_one_worker_makes_the_same_batches(packed: Packed, choice: dict[str, Any]) -> None:
    alone = load(packed, 0, **choice)
    for ours, theirs in zip(load(packed, 1, **choice), alone, strict=True):
        assert ours.keys == theirs.keys
        states: list[Any] = [
            one.graph.x if one.graph is not None else one.hidden for one in (ours, theirs)
        ]
        assert torch.equal(states[0], states[1])
        assert torch.equal(ours.label, theirs.label)


def test_more_workers_than_samples(packed: Packed) -> None:
    loader = load(packed, 12, split="val", batch_size=3)
    alone = by_sample(load(packed, 0, split="val"))
    assert len(alone) < 12
    assert_same(by_sample(loader), alone)
    assert loader.stats.batches == len(loader)


def test_more_workers_than_cores_keep_their_turn(packed: Packed) -> None:
    orders = [order(load(packed, 5, seed=3)) for _ in range(4)]
    assert all(one == orders[0] for one in orders)


def test_workers_live_on(packed: Packed) -> None:
    loader = load(packed)
    first = order(loader)
    workers = pids()
    assert len(workers) == 2
    orders = [order(loader) for _ in range(5)]
    assert pids() == workers
    assert len({tuple(one) for one in [first, *orders]}) == 6
    loader.set_epoch(0)
    assert order(loader) == first


@pytest.mark.parametrize("after", [1, 2, 5, 13])
def test_an_early_break(large: Packed, after: int) -> None:
    loader, other = load_large(large), load_large(large)
    orders = [order(other) for _ in range(4)]
    del other
    workers: list[int] = []
    for epoch in range(4):
        for number, batch in enumerate(loader, start=1):
            check_states(batch, large, "all")
            if number == after:
                break
        workers = workers or pids()
        assert pids() == workers
        loader.set_epoch(epoch)
        assert order(loader) == orders[epoch]
    samples = by_sample(loader)
    assert samples.keys() == large.raws.keys()
    for question_id, sample in samples.items():
        np.testing.assert_array_equal(sample["hidden"], wanted(large, question_id, "all"))


def test_breaks_while_batches_are_held(large: Packed) -> None:
    loader = load_large(large)
    held: list[Batch] = []
    for _ in range(10):
        for batch in loader:
            held.append(batch)
            if len(held) % 3 == 0:
                break
    for batch in held:
        check_states(batch, large, "all")
    assert_same(by_sample(loader), by_sample(load_large(large, 0)))


def test_an_exception_of_the_trainer(large: Packed) -> None:
    loader = load_large(large)

    def train() -> None:
        for number, _ in enumerate(loader):
            if number == 3:
                raise ZeroDivisionError("loss")

    for _ in range(3):
        with pytest.raises(ZeroDivisionError, match="loss"):
            train()
    workers = pids()
    assert_same(by_sample(loader), by_sample(load_large(large, 0)))
    assert pids() == workers


def test_a_trainer_that_throws_into_the_iterator(large: Packed) -> None:
    loader = load_large(large)
    batches: Any = iter(loader)
    next(batches)
    with pytest.raises(KeyError):
        batches.throw(KeyError("thrown"))
    assert_same(by_sample(loader), by_sample(load_large(large, 0)))


def test_two_iterators_at_once(large: Packed) -> None:
    loader = load_large(large)
    first, second = iter(loader), iter(loader)
    lefts, rights = [], []
    for left, right in zip(first, second, strict=True):
        check_states(left, large, "all")
        check_states(right, large, "all")
        lefts += left.keys
        rights += right.keys
    assert sorted(lefts) == sorted(rights)
    assert lefts != rights  # two epochs
    fresh = load_large(large)
    assert [lefts, rights] == [order(fresh), order(fresh)]
    del first, second
    gc.collect()
    assert until(lambda: len(pids()) == 4)  # one team of this loader, one of `fresh`


def test_a_loop_inside_the_loop(packed: Packed) -> None:
    loader = load(packed, batch_size=20)
    alone = load(packed, 0).index
    for _ in loader:
        inner = [key for batch in loader for key in batch.keys]
        assert sorted(inner) == sorted(alone.keys(np.arange(len(alone))))
    assert order(loader)


def test_an_iterator_that_is_left_lying(large: Packed) -> None:
    loader = load_large(large)
    left = iter(loader)
    next(left)
    for _ in range(3):
        assert len(order(loader)) == 80
    assert sum(len(batch) for batch in left) == 76
    del left
    assert len(order(loader)) == 80


def test_everything_may_be_kept(large: Packed) -> None:
    loader = load_large(large)
    kept = [list(loader) for _ in range(3)]
    # All but the slabs that a worker needs came where they lie.
    most = 2 * (SLABS_EACH - 1)
    assert loader.stats.batches - most <= loader.stats.copied_batches <= loader.stats.batches
    for batches in kept:
        assert sorted(i for batch in batches for i in batch.question_ids) == sorted(large.raws)
        for batch in batches:
            check_states(batch, large, "all")
    del kept, batches, batch
    gc.collect()
    for batch in loader:
        del batch
    assert loader.stats.copied_batches == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda batch: batch.hidden[:, :1].numpy(),
        lambda batch: batch.hidden.detach()[:, :1],
        lambda batch: memoryview(batch.hidden.numpy())[:],
        lambda batch: batch.hidden.transpose(0, 1)[:1].transpose(0, 1),
    ],
    ids=["numpy", "detach", "memoryview", "transpose"],
)
def test_views_of_a_few_batches_are_kept_for_epochs(large: Packed, view: Any) -> None:
    loader = load_large(large, shuffle=0)
    kept = []
    for epoch in range(4):
        for number, batch in enumerate(loader):
            if number % 7 == epoch:
                kept.append((batch.question_ids, view(batch)))
            del batch
    assert len(kept) >= 8
    for question_ids, seen in kept:
        for i, question_id in enumerate(question_ids):
            expected = wanted(large, question_id, "all")[:1]
            np.testing.assert_array_equal(np.asarray(seen)[i, :1], expected)


def test_gradients_are_right(large: Packed) -> None:
    loader = load_large(large)
    for _ in range(2):
        losses = []
        weight = torch.ones(1024, requires_grad=True)
        for batch in loader:
            assert batch.hidden is not None
            losses.append((batch.hidden * weight).sum())  # the states are saved for backward
        total = torch.stack(losses).sum()
        del batch, losses
        total.backward()  # type: ignore[no-untyped-call]
        expected = sum(wanted(large, q, "all").astype(np.float64).sum((0, 1)) for q in large.raws)
        assert weight.grad is not None
        np.testing.assert_allclose(weight.grad.numpy(), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("when", ["unused", "done", "early", "open"])
def test_nothing_is_left_of_a_dropped_loader(large: Packed, when: str) -> None:
    order(load_large(large, 0))  # what is opened once is open
    files = open_files()
    loader = load_large(large)
    batches = iter(loader)
    if when != "unused":
        next(batches)
        assert len(pids()) == 2
    if when == "done":
        deque(batches, maxlen=0)
    if when == "early":
        batches.close()  # type: ignore[attr-defined]
    del loader, batches
    gc.collect()
    assert until(lambda: not pids())
    assert open_files() == files
    assert "wdsbench-slab" not in Path("/proc/self/maps").read_text()


def test_a_kept_batch_keeps_no_worker(large: Packed) -> None:
    loader = load_large(large)
    batches = iter(loader)
    kept = next(batches)
    del loader, batches
    gc.collect()
    assert until(lambda: not pids())
    check_states(kept, large, "all")
    kept.hidden.fill_(1.0)  # type: ignore[union-attr]


def test_many_loaders_come_and_go(packed: Packed) -> None:
    order(load(packed, 0))
    files = open_files()
    for _ in range(8):
        assert len(order(load(packed))) == 60
    gc.collect()
    assert until(lambda: not pids())
    assert open_files() == files


def check_all(batches: Iterator[Batch], packed: Packed) -> None:
    for batch in batches:
        check_states(batch, packed, "all")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_in_mid_epoch(large: Packed, victim: int) -> None:
    loader = load_large(large, batch_size=2)
    for _ in range(2):
        batches = iter(loader)
        check_states(next(batches), large, "all")
        os.kill(pids()[victim], signal.SIGKILL)
        with pytest.raises(WdsbenchError, match="was killed by signal 9; out of memory"):
            check_all(batches, large)
        assert until(lambda: not pids())
    assert_same(by_sample(loader), by_sample(load_large(large, 0)))


def test_a_worker_killed_between_epochs(large: Packed) -> None:
    loader = load_large(large)
    order(loader)
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    with pytest.raises(WdsbenchError, match="was killed by signal 9"):
        order(loader)
    assert len(order(loader)) == 80


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGSEGV, signal.SIGBUS])
def test_other_signals_are_named(large: Packed, sig: signal.Signals) -> None:
    loader = load_large(large, batch_size=1)
    batches = iter(loader)
    next(batches)
    for pid in pids():
        os.kill(pid, sig)
    with pytest.raises(WdsbenchError, match=f"was killed by signal {sig.value}"):
        check_all(batches, large)


def test_damage_ends_the_team_and_not_the_loader(tmp_path: Path) -> None:
    packed = make_dataset(tmp_path, traces=40)
    loader = load(packed)
    index = loader.index
    path = index.shard_path(1)
    good = path.read_bytes()
    row = int(index.first_rows[1])
    offset = int(index.member("hidden.npy", "offset")[row])
    other = path.with_suffix(".other")
    other.write_bytes(good[:offset] + b"XX" + good[offset + 2 :])
    other.replace(path)
    for _ in range(3):
        with pytest.raises(DecodeError, match="not an npy member") as caught:
            order(loader)
        assert caught.value.shard == str(path)
        assert caught.value.member == index.member_name(row, "hidden.npy")
        assert "Traceback" in str(caught.value.__cause__)
        assert until(lambda: not pids())
    other.write_bytes(good)
    other.replace(path)
    for _ in range(3):
        assert len(order(loader)) == 40


class ForeignError(Exception):
    """Cannot be made anew from its words alone."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_an_unexpected_error_is_reported(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    class LocalError(Exception):
        pass

    errors = [
        (ZeroDivisionError("by zero"), ZeroDivisionError, "by zero"),
        (OSError(28, "No space left on device"), OSError, "No space left on device"),
        (MemoryError("too much"), MemoryError, "too much"),
        (ForeignError(1, 2), WdsbenchError, "ForeignError: 1 and 2"),
        (LocalError("here"), WdsbenchError, "LocalError: here"),
    ]
    for error, kind, words in errors:

        def fail(*_: Any, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(BatchDecoder, "start", fail)
            loader = load(packed)
            with pytest.raises(kind, match=words) as caught:
                order(loader)
        assert "Traceback" in str(caught.value.__cause__)
        assert "in fail" in str(caught.value.__cause__)
        assert len(order(loader)) == 60


@pytest.mark.parametrize("limit", [0, 2 * 3 * 4096, 2 * 3 * 300_000])
@pytest.mark.parametrize("layout", ["stack", "graph"])
def test_batches_larger_than_a_slab(
    large: Packed, monkeypatch: pytest.MonkeyPatch, limit: int, layout: str
) -> None:
    monkeypatch.setattr(team_module, "SHARED_LIMIT_BYTES", limit)
    loader = load_large(large, layout=layout)
    alone = by_sample(load_large(large, 0, layout=layout))
    for _ in range(2):
        assert_same(by_sample(loader), alone)
        assert loader.stats.copied_batches == loader.stats.batches


def test_some_batches_larger_than_a_slab(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = load(packed, 0, tokens="all", layout="jagged", batch_size=3)
    sizes = [batch.hidden.nbytes for batch in alone if batch.hidden is not None]
    monkeypatch.setattr(team_module, "SHARED_LIMIT_BYTES", 2 * 3 * sorted(sizes)[len(sizes) // 2])
    loader = load(packed, tokens="all", layout="jagged", batch_size=3)
    assert_same(by_sample(loader), by_sample(alone))
    assert 0 < loader.stats.copied_batches < loader.stats.batches


def test_workers_share_no_more_than_they_may(
    large: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_module, "SHARED_LIMIT_BYTES", 3_000_000)
    sizes: list[int] = []
    make = SharedSlab

    def count(size: int) -> Any:
        sizes.append(size)
        return make(size)

    monkeypatch.setattr(team_module, "SharedSlab", count)
    order(load_large(large))
    assert len(sizes) == 2 * SLABS_EACH
    assert sum(sizes) <= 3_000_000


def test_memory_that_is_held_by_nobody_is_reused(large: Packed) -> None:
    loader = load_large(large)
    places = set()
    for _ in range(4):
        for batch in loader:
            assert batch.hidden is not None
            places.add(batch.hidden.data_ptr())
            states_of(batch, 0)
            del batch
    assert len(places) <= 2 * SLABS_EACH
    assert loader.stats.copied_batches == 0


def test_metas_larger_than_a_pipe_holds(tmp_path: Path) -> None:
    from builders import make_raw, write_pickle, write_scores

    from wdsbench.pack import pack

    raws = {f"q{i}": make_raw(f"q{i}", seed=i) for i in range(24)}
    for raw in raws.values():
        raw["generated_answer_clean"] = raw["question_id"] * 200_000
    write_pickle(tmp_path / "t.pkl", list(raws.values()))
    scores = write_scores(tmp_path / "s.csv", dict.fromkeys(raws, 1.0))
    pack([str(tmp_path / "t.pkl")], tmp_path / "shards", scores=scores)
    packed = Packed(tmp_path / "shards", raws, {})
    loader = load(packed, fields=("hidden", "meta"), batch_size=2)
    for epoch in range(3):
        for batch in loader:
            assert batch.meta is not None
            for question_id, meta in zip(batch.question_ids, batch.meta, strict=True):
                assert meta["answer"] == question_id * 200_000
            if epoch == 1:
                break
    assert loader.stats.samples == 24
    first, second = iter(loader), iter(loader)
    next(first), next(second)
    del first, second, loader


def test_workers_started_in_a_thread(packed: Packed) -> None:
    import threading

    loader = load(packed)
    seen: list[list[str]] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: seen.append(order(loader)))
        thread.start()
        thread.join()
    seen.append(order(loader))
    assert [len(one) for one in seen] == [60] * 3


def test_loaders_in_several_threads(large: Packed) -> None:
    import threading

    wrong: list[Any] = []

    def work(workers: int, seed: int) -> None:
        try:
            loader = load_large(large, workers, seed=seed)
            for _ in range(3):
                samples = 0
                for batch in loader:
                    check_states(batch, large, "all")
                    samples += len(batch)
                assert samples == 80
        except BaseException as error:
            wrong.append(error)

    order(load_large(large, 0))
    threads = [threading.Thread(target=work, args=(n, n)) for n in (0, 2, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


SCRIPT = """
import multiprocessing, os, sys, time
sys.path.insert(0, sys.argv[1])
from wdsbench import TraceLoader

def main():
    if len(sys.argv) > 3:
        multiprocessing.set_start_method(sys.argv[3], force=True)
    loader = TraceLoader(sys.argv[2], split=None, num_workers=2, batch_size=5,
                         tokens="all", layout="pad")
    for _ in range(2):
        seen = [(i, round(float(batch.hidden[n].sum()), 3))
                for batch in loader for n, i in enumerate(batch.keys)]
        assert len(seen) == 60, len(seen)
        print(sorted(seen) == sorted((i, round(float(batch.hidden[n].sum()), 3))
              for batch in TraceLoader(sys.argv[2], split=None, tokens="all", layout="pad")
              for n, i in enumerate(batch.keys)))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_start_methods(packed: Packed, tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "\nif __name__ == '__main__':\n    main()\n")
    done = run_file(script, TESTS, packed.folder, method)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]
    assert done.stderr == ""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_without_a_main_guard(packed: Packed, tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "\nmain()\n")
    done = run_file(script, TESTS, packed.folder, method)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]
    assert done.stderr == ""


ENDLESS = """
import multiprocessing, os, signal, sys, time
from wdsbench import TraceLoader

def main():
    # A shell starts what runs in its background with Ctrl-C ignored, and so would we be.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = TraceLoader(sys.argv[1], split=None, num_workers=2, batch_size=1)
    for epoch in range(100_000):
        for number, batch in enumerate(loader):
            if epoch == 1 and number == 5:
                pids = [child.pid for child in multiprocessing.active_children()]
                print(*pids, flush=True)
            if sys.argv[2] == "held" and (epoch, number) >= (1, 5):
                time.sleep(0.01)

if __name__ == "__main__":
    main()
"""


@contextlib.contextmanager
def endless(packed: Packed, folder: Path, mode: str) -> Iterator[tuple[Any, list[int]]]:
    """Yield a training process in mid-epoch and its workers; none of them outlives the block."""
    script = folder / "script.py"
    script.write_text(ENDLESS)
    process = subprocess.Popen(
        [sys.executable, str(script), str(packed.folder), mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(is_alive, workers))
        yield process, workers
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("mode", ["held"])
def test_a_killed_trainer_leaves_no_worker(packed: Packed, tmp_path: Path, mode: str) -> None:
    with endless(packed, tmp_path, mode) as (process, workers):
        process.kill()
        process.communicate()
        assert until(lambda: not any(map(is_alive, workers)), 10)


@pytest.mark.parametrize("mode", ["fast", "held"])
def test_ctrl_c(packed: Packed, tmp_path: Path, mode: str) -> None:
    with endless(packed, tmp_path, mode) as (process, workers):
        time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT
        assert err.strip().splitlines()[-1].startswith("KeyboardInterrupt")
        assert err.count("KeyboardInterrupt") == 1
        assert until(lambda: not any(map(is_alive, workers)), 10)


def test_the_end_of_a_script_in_mid_epoch(packed: Packed, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom wdsbench import TraceLoader\n"
        "loader = TraceLoader(sys.argv[1], split=None, num_workers=2, batch_size=1)\n"
        "kept = [next(iter(loader))]\nopened = iter(loader)\nkept.append(next(opened))\n"
        "print(len(kept))\n"
    )
    done = run_file(script, packed.folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
