"""start_rows decodes in the background, many batches at once."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from batch.members import D, L, Members, T, big, job, start, states
from trials import FULL_ONLY, trials

from wdsbench import _core

#: (threads, access) of `make test`.
QUICK = [(1, "pread"), (2, "map"), (3, "sparse"), (8, "map")]


@pytest.mark.parametrize(
    ("threads", "access"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else FULL_ONLY)
        for pair in itertools.product((1, 2, 3, 8), ("map", "sparse", "pread"))
    ],
)
def test_many_in_flight_waited_for_in_any_order(
    members: Members, threads: int, access: str
) -> None:
    every = [states(seed) for seed in range(200)]
    places = [members.put(values) for values in every]
    files = members.open(access=access)
    runs = []
    for first in range(0, 200, 5):
        out = np.full(5 * L * T * D, np.nan, np.float32)
        jobs = [job(places[first + i], target=i * L * T * D) for i in range(5)]
        runs.append((first, out, start(files, jobs, out, threads=threads)))
    del files
    np.random.default_rng(threads).shuffle(runs)
    for first, out, run in runs:
        run.wait()
        expected = np.stack(every[first : first + 5]).astype(np.float32)
        np.testing.assert_array_equal(out.reshape(expected.shape), expected)
        assert run.busy_seconds > 0
        assert run.done_at > 0


def test_waiting_twice(members: Members) -> None:
    good, bad = members.put(states()), members.put(np.zeros((L, T, D + 1), np.float16))
    files = members.open()
    out = np.empty(L * T * D, np.float32)
    run = start(files, [job(good)], out)
    run.wait()
    run.wait()
    failing = start(files, [job(bad)], out)
    for _ in range(2):
        with pytest.raises(_core.FormatError, match="expected"):
            failing.wait()


def test_nothing_to_do(members: Members) -> None:
    files = members.open()
    run = start(files, [], np.empty(0, np.float32))
    run.wait()
    assert run.busy_seconds == 0


def test_done_at_is_on_the_clock_of_perf_counter(members: Members) -> None:
    files = members.open()
    del files
    place = members.put(states())
    files = members.open()
    for threads in (1, 2):
        before = time.perf_counter()
        run = start(files, [job(place)], np.empty(L * T * D, np.float32), threads=threads)
        run.wait()
        assert before <= run.done_at <= time.perf_counter()


@pytest.mark.trials
@pytest.mark.parametrize("threads", [1, 2, pytest.param(4, marks=FULL_ONLY)])
def test_dropped_before_its_end(members: Members, threads: int) -> None:
    jobs, values, features = big(members, 4, 8)
    files = members.open()
    options = {"features": features, "threads": threads}
    for _ in range(trials(4, 10)):
        out = np.full(8 * values.size, -1, np.float32)
        run = start(files, jobs, out, **options)
        del run
        # Nobody works on it any more.
        before = out.copy()
        out[:] = -2
        assert (out == -2).all()
        assert set(np.unique(before[:: values.size])) <= {-1.0, np.float32(values[0, 0, 0])}
    out = np.empty(8 * values.size, np.float32)
    start(files, jobs, out, **options).wait()
    np.testing.assert_array_equal(out.reshape(8, *values.shape)[7], values.astype(np.float32))


def test_a_dropped_run_does_not_hold_up_others(members: Members) -> None:
    jobs, values, features = big(members, 4, 16)
    small = members.put(states())
    files = members.open()
    for _ in range(5):
        outs = [np.empty(16 * values.size, np.float32) for _ in range(3)]
        runs = [start(files, jobs, out, features=features) for out in outs]
        out = np.empty(L * T * D, np.float32)
        last = start(files, [job(small)], out)
        del runs
        last.wait()
        np.testing.assert_array_equal(out.reshape(L, T, D), states().astype(np.float32))


def test_the_buffer_lives_as_long_as_the_run(members: Members) -> None:
    jobs, values, features = big(members, 4, 4)
    files = members.open()
    for _ in range(10):
        out = np.empty(4 * values.size, np.float32)
        run = start(files, jobs, out, features=features)
        del out
        np.full(4 * values.size, 7, np.float32)  # would take its place
        run.wait()


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_the_lowest_failing_sample_is_named(members: Members, threads: int) -> None:
    good = members.put(states())
    wrong_shape = members.put(np.zeros((L, T + 1, D), np.float16))
    wrong_type = members.put(np.zeros((L, T, D), np.complex64))
    files = members.open()
    out = np.empty(L * T * D, np.float32)
    rng = np.random.default_rng(threads)
    for _ in range(50):
        first = int(rng.integers(0, 30))
        kinds = [good] * first + [wrong_shape if rng.random() < 0.5 else wrong_type]
        kinds += [(good, wrong_shape, wrong_type)[i] for i in rng.integers(0, 3, 30)]
        run = start(files, [job(kind) for kind in kinds], out, threads=threads)
        with pytest.raises(_core.FormatError) as caught:
            run.wait()
        assert caught.value.sample == first
        assert caught.value.member == "hidden"
        assert caught.value.kind == ("shape" if kinds[first] == wrong_shape else "dtype")
    with pytest.raises(_core.FormatError):
        start(files, [job(wrong_shape)] * 3, out, threads=threads).wait()


def test_an_error_dropped_is_nobodys(members: Members) -> None:
    bad = members.put(np.zeros((L, T + 1, D), np.float16))
    good = members.put(states())
    files = members.open()
    for _ in range(20):
        start(files, [job(bad)] * 9, np.empty(L * T * D, np.float32))
    out = np.empty(L * T * D, np.float32)
    start(files, [job(good)], out).wait()
    np.testing.assert_array_equal(out.reshape(L, T, D), states().astype(np.float32))


def test_a_cut_between_start_and_wait(members: Members) -> None:
    place = members.put(states())
    files = members.open()
    run = start(files, [job(place)], np.empty(L * T * D, np.float32))
    os.truncate(members.path, place[0] + 10)
    with pytest.raises(_core.FormatError) as caught:
        run.wait()
    assert (caught.value.kind, caught.value.sample) == ("truncated", 0)
    assert place[0] + 10 <= caught.value.offset_bytes <= len(members.data)


def test_the_first_sample_of_a_changed_file_is_named(tmp_path: Path) -> None:
    every = [Members(tmp_path / str(number)) for number in range(3)]
    places = [one.put(states()) for one in every]
    for one in every:
        one.path.write_bytes(one.data)
        os.utime(one.path, ns=(1, 1))
    files = _core.ShardFiles(
        [os.fsencode(one.path) for one in every], [len(one.data) for one in every], limit=3
    )
    jobs = [[shard, *job(places[shard])[1:]] for shard in (2, 0, 0, 1, 2, 1)]
    run = start(files, jobs, np.empty(L * T * D, np.float32))
    run.wait()
    os.utime(every[1].path)
    with pytest.raises(_core.FormatError, match="was written to") as caught:
        run.wait()
    assert (caught.value.kind, caught.value.sample, caught.value.member) == ("io", 3, "")


# Elements of the batch buffer, features, offset of its first element from a cache line.
LARGE = [(3_000_000, 1000, 0), (3_000_000, 997, 4), (1_200_000, 1001, 8), (1_100_000, 3, 60)]


@pytest.mark.parametrize(
    ("elements", "features", "shift", "dtype", "access"),
    [
        *((*row, "<f2", "map") for row in LARGE),
        *((*LARGE[number], "<f4", "pread") for number in (1, 3)),
        *(
            pytest.param(*row, dtype, access, marks=FULL_ONLY)
            for number, row in enumerate(LARGE)
            for dtype, access in (("<f2", "pread"), ("<f4", "map"), ("<f4", "pread"))
            if access == "map" or dtype == "<f2" or number % 2 == 0
        ),
    ],
)
def test_padding_of_large_batches(
    members: Members, elements: int, features: int, shift: int, dtype: str, access: str
) -> None:
    padded = 7
    samples = elements // (L * padded * features)
    lengths = np.random.default_rng(0).integers(0, padded + 1, samples).tolist()
    stride = padded * features
    values = [states(n, (L, n, features)).astype(dtype) for n in range(padded + 1)]
    places = [members.put(one) for one in values]
    files = members.open(access=access)
    size = samples * L * stride
    memory = np.full(size * 4 + 128, 0xA5, np.uint8)
    begin = -memory.ctypes.data % 64 + shift
    out = memory[begin : begin + size * 4].view(np.float32)
    assert out.nbytes >= 4 << 20
    jobs = [
        job(places[n], tokens=n, target=i * L * stride, stride=stride)
        for i, n in enumerate(lengths)
    ]
    start(files, jobs, out, features=features, token_padded=padded, threads=3).wait()
    expected = np.zeros((samples, L, padded, features), np.float32)
    for i, n in enumerate(lengths):
        expected[i, :, :n] = values[n]
    np.testing.assert_array_equal(out.reshape(expected.shape), expected)
    assert (memory[:begin] == 0xA5).all()
    assert (memory[begin + size * 4 :] == 0xA5).all()


def test_a_misaligned_buffer_is_written_or_refused(members: Members) -> None:
    place = members.put(states())
    files = members.open()
    memory = np.full(L * T * D * 4 + 8, 0xA5, np.uint8)
    out = memory[1 : 1 + L * T * D * 4].view(np.float32)
    try:
        start(files, [job(place)], out).wait()
    except (TypeError, ValueError) as error:
        assert "out" in str(error)  # noqa: PT017
    else:
        np.testing.assert_array_equal(out.reshape(L, T, D), states().astype(np.float32))


def test_the_gil_is_released(members: Members) -> None:
    jobs, values, features = big(members, 4, 12)
    files = members.open()
    out = np.empty(12 * values.size, np.float32)
    going, steps = threading.Event(), [0]

    def count() -> None:
        while not going.is_set():
            steps[0] += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # nobody is asked to hand the GIL over
    thread = threading.Thread(target=count)
    try:
        thread.start()
        for threads in (1, 2):
            before, tries = steps[0], 0
            while steps[0] == before:  # a busy machine may not run the other thread at once
                assert tries < 100
                tries += 1
                start(files, jobs, out, features=features, threads=threads).wait()
    finally:
        going.set()
        sys.setswitchinterval(interval)
        thread.join()
    np.testing.assert_array_equal(out.reshape(12, *values.shape)[11], values.astype(np.float32))


def test_python_threads_share_the_pool(members: Members) -> None:
    every = [states(seed) for seed in range(20)]
    places = [members.put(values) for values in every]
    bad = members.put(np.zeros((L, T + 1, D), np.float16))
    files = members.open()
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(100):
                chosen = rng.integers(0, 20, 6).tolist()
                out = np.empty(6 * L * T * D, np.float32)
                jobs = [job(places[c], target=i * L * T * D) for i, c in enumerate(chosen)]
                run = start(files, jobs, out, threads=int(rng.integers(1, 5)))
                if rng.random() < 0.2:
                    continue
                run.wait()
                if not (out.reshape(6, L, T, D) == np.stack([every[c] for c in chosen])).all():
                    wrong.append(chosen)
                failing = start(files, [job(bad)], out, threads=2)
                try:
                    failing.wait()
                    wrong.append("no error")
                except _core.FormatError:
                    pass
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_one_run_waited_for_by_many(members: Members) -> None:
    jobs, values, features = big(members, 4, 8)
    files = members.open()
    for count in (1, 2, 4):
        out = np.empty(8 * values.size, np.float32)
        run = start(files, jobs, out, features=features, threads=count)
        threads = [threading.Thread(target=run.wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(out.reshape(8, *values.shape)[7], values.astype(np.float32))
