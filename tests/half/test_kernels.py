"""Every kernel against the reference: all inputs, all small lengths, every misalignment."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import reference

from wdsbench import _core

SUPPORTED = [name for name, supported in _core.half_kernels() if supported]
WIDEST_LANES = 16
GUARD = 0xA5


@pytest.fixture(params=SUPPORTED)
def kernel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["cached", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_scalar_is_the_last_and_always_there() -> None:
    assert _core.half_kernels()[-1] == ("scalar", True)


def test_every_half(kernel: str, stream: bool) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    expected = reference.widen_half(bits)
    for shift in range(0, 64, 4):
        out = aligned(4 * 65536 + 64)[shift : shift + 4 * 65536].view(np.uint32)
        _core.widen_half(bits, out, kernel=kernel, stream=stream)
        np.testing.assert_array_equal(out, expected, f"shifted by {shift} bytes")


def aligned(size: int) -> np.ndarray:
    """Return bytes that start at a cache line."""
    memory = np.full(size + 64, GUARD, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def test_streaming_from_every_place_of_a_line(kernel: str) -> None:
    for shift in range(68):
        every = np.random.default_rng(shift).integers(0, 65536, 80).astype(np.uint16)
        wide = reference.widen_half(every).view(np.uint8)
        for length in (0, 1, 3, 7, 8, 15, 16, 17, 31, 32, 33, 47, 64, 79, 80):
            source, target = aligned(256), aligned(512)
            source[shift : shift + 2 * length] = every[:length].view(np.uint8)
            place = target[shift : shift + 4 * length]
            _core.widen_half(source[shift : shift + 2 * length], place, kernel=kernel, stream=True)
            assert (place == wide[: 4 * length]).all(), f"{length} halves at {shift}"
            assert (target[:shift] == GUARD).all(), (length, shift)
            assert (target[shift + 4 * length :] == GUARD).all(), (length, shift)


def test_signalling_nan_comes_out_quiet(kernel: str, stream: bool) -> None:
    out = np.empty(2, np.uint32)
    bits = np.array([0x7C01, 0xFC01], np.uint16)
    _core.widen_half(bits, out, kernel=kernel, stream=stream)
    assert out.tolist() == [0x7FC02000, 0xFFC02000]


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_odd_lengths_and_misaligned_ends(kernel: str, stream: bool, shift: int) -> None:
    for length in range(2 * WIDEST_LANES + 2):
        bits = np.random.default_rng(length).integers(0, 65536, length).astype(np.uint16)
        source = np.full(2 * length + 8, GUARD, np.uint8)
        source[shift : shift + 2 * length] = bits.view(np.uint8)
        target = np.full(4 * length + 8, GUARD, np.uint8)
        _core.widen_half(
            source[shift : shift + 2 * length],
            target[shift : shift + 4 * length],
            kernel=kernel,
            stream=stream,
        )
        written = target[shift : shift + 4 * length].copy().view(np.uint32)
        np.testing.assert_array_equal(written, reference.widen_half(bits), f"{length} halves")
        assert (target[:shift] == GUARD).all(), length
        assert (target[shift + 4 * length :] == GUARD).all(), length


def test_a_target_of_another_size_is_refused(kernel: str) -> None:
    with pytest.raises(ValueError, match="8 bytes of float16 need 16"):
        _core.widen_half(bytes(8), bytearray(15), kernel=kernel)


def test_read_only_target_is_refused() -> None:
    with pytest.raises(BufferError):
        _core.widen_half(bytes(2), bytes(4))


def run_with(kernel: str) -> subprocess.CompletedProcess[str]:
    code = "from wdsbench import _core; print(_core.half_kernel())"
    environment = {**os.environ, "WDSBENCH_HALF_KERNEL": kernel}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_the_forced_kernel_is_the_one_that_runs(kernel: str) -> None:
    assert run_with(kernel).stdout.strip() == kernel


def test_an_unknown_kernel_is_an_error() -> None:
    done = run_with("mmx")
    assert done.returncode != 0
    assert "WDSBENCH_HALF_KERNEL=mmx: unknown; one of" in done.stderr


def narrowed(values: np.ndarray) -> np.ndarray:
    out = np.empty(values.size, np.uint16)
    _core.narrow_float(values, out)
    return out


def test_narrowing_rounds_to_nearest_even() -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    ordered = np.unique(halves)
    between = (ordered[1:] + ordered[:-1]) / 2  # every tie
    rng = np.random.default_rng(0)
    floats = rng.integers(0, 2**32, 1_000_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([halves, between, np.nextafter(between, np.float32(0)), floats])
    values = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(narrowed(values), expected)


def test_narrowing_keeps_nan_a_nan() -> None:
    bits = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF], np.uint32)
    out = narrowed(bits.view(np.float32))
    assert np.isnan(out.view(np.float16)).all()
    assert (out & 0x0200).all()
