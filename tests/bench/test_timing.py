"""Turns, medians and what counts as an epoch. No times."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from wdsbench.bench.timing import Work, consumed, in_seconds, interleaved, spread
from wdsbench.errors import WdsbenchError


class Caller:
    """Makes cases that write down when they are called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def case(self, name: str, work: Work) -> Callable[[], Work]:
        def call() -> Work:
            self.calls.append(name)
            return work

        return call


def test_cases_take_turns() -> None:
    caller = Caller()
    cases = {"a": caller.case("a", Work(2, 8)), "b": caller.case("b", Work(0, 8))}
    results = interleaved(cases, repeats=3, least_seconds=0.0)
    assert caller.calls == ["a", "b"] * 4
    assert [(result.name, result.epochs) for result in results] == [("a", 3), ("b", 3)]
    assert results[1].samples_per_s is None
    assert all(result.memory_mb is not None for result in results)


def test_epochs_are_divided_over_repeats() -> None:
    caller = Caller()
    cases = {"a": caller.case("a", Work(2, 8)), "share": caller.case("share", Work(2, 8, 0.25))}
    results = interleaved(cases, repeats=3, least_seconds=0.0, least_epochs=10)
    assert [result.epochs for result in results] == [12, 0.75]
    assert caller.calls.count("a") == 1 + 12


def test_seconds_are_medians_after_a_warm_up() -> None:
    answers = iter([100.0, 3.0, 1.0, 2.0])
    (result,) = in_seconds({"a": lambda: next(answers)}, repeats=3)
    assert (result.seconds, result.spread, result.gbps) == (2.0, 1.0, None)


def test_spread_of_nothing() -> None:
    assert spread([0.0, 0.0]) == 0.0


def test_an_epoch_is_consumed() -> None:
    assert consumed([torch.zeros(3, 2), torch.zeros(1, 2)], 4) == Work(4, 32, 1.0, 2)


def test_a_share_of_an_epoch_is_counted_as_one() -> None:
    work = consumed((torch.zeros(3, 2) for _ in range(4)), 12, most_seconds=0.0)
    assert work == Work(3, 24, 0.25, 1)


@pytest.mark.parametrize("samples", [3, 5])
def test_a_reader_that_loses_samples_is_an_error(samples: int) -> None:
    with pytest.raises(WdsbenchError, match=f"returned 4 samples; an epoch has {samples}"):
        consumed([torch.zeros(4, 2)], samples)


def test_a_reader_that_raises_is_not_skipped() -> None:
    def broken() -> Work:
        raise OSError("no such shard")

    with pytest.raises(OSError, match="no such shard"):
        interleaved({"a": lambda: Work(1, 4), "b": broken}, repeats=1)
