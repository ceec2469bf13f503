"""Percentiles of a stream: NumPy's while all values are kept, then within a bound."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from wdsbench.train.quantiles import BOUND, EXACT, Percentiles

PERCENTS = (0, 0.1, 5, 50, 95, 99.9, 100)
VALUES = np.random.default_rng(0).lognormal(-6, 2, EXACT + 9001)


def added(values: NDArray[np.float64], parts: int) -> Percentiles:
    found = Percentiles()
    for part in np.array_split(values, parts):
        found.add(part)
    return found


@pytest.mark.parametrize("count", [1, 2, 1000, EXACT])
def test_they_are_exact_while_all_are_kept(count: int) -> None:
    found = added(VALUES[:count], 7)
    assert found.exact
    assert [found.at(p) for p in PERCENTS] == [np.percentile(VALUES[:count], p) for p in PERCENTS]


def test_the_error_is_bounded_and_the_order_does_not_matter() -> None:
    found = added(VALUES, 99)
    assert not found.exact
    expected = [np.percentile(VALUES, p) for p in PERCENTS]
    assert [found.at(p) for p in PERCENTS] == pytest.approx(expected, rel=BOUND, abs=0)
    for cut in (9000, 30_000, EXACT + 1):
        both = Percentiles.joined([added(VALUES[:cut][::-1], 3), added(VALUES[cut:], 2)])
        assert both.count == VALUES.size
        assert [both.at(p) for p in PERCENTS] == [found.at(p) for p in PERCENTS]


def test_memory_does_not_grow() -> None:
    found = added(VALUES, 3)
    assert found._kept == []
    assert found._bins is not None
    assert found._bins.nbytes == 4 << 20


def test_values_of_zero_and_none() -> None:
    assert added(np.zeros(5), 1).at(95) == 0
    assert added(np.zeros(EXACT + 1), 2).at(95) < 1e-37
    with pytest.raises(ValueError, match="no value was added"):
        Percentiles().at(50)
