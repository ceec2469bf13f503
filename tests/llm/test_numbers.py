"""Numbers of texts: which there are, and which are the same quantity."""

from __future__ import annotations

import pytest

from wdsbench.llm.numbers import numbers_in

# text, (value without unit, dimension) of each number
TEXTS: list[tuple[str, list[tuple[float, str | None]]]] = [
    ("about 1,234,567 people", [(1234567, None)]),
    ("1 234 567, 1'234.5, 1\u202f234", [(1234567, None), (1234.5, None), (1234, None)]),
    ("1.234.567,8 or 1.234", [(1234567.8, None), (1.234, None)]),
    ("3,5,7 and 12,3456", [(3, None), (5, None), (7, None), (12, None), (3456, None)]),
    ("in 1999, 200 people", [(1999, None), (200, None)]),
    ("-5, \u22122.5 and 1990-1995", [(-5, None), (-2.5, None), (1990, None), (1995, None)]),
    ("the 2nd of 90th; H2O; B52; two", [(2, None), (90, None)]),
    ("1.2e6, 3 x 10^8 and 5\u00d710^-2", [(1.2e6, None), (3e8, None), (0.05, None)]),
    ("1.5 million, 2 thousand", [(1.5e6, None), (2000, None)]),
    ("It is 42.", [(42, None)]),
    (".5, 0", [(0.5, None), (0, None)]),
    ("5 km, 5-mile, 3 feet", [(5, "m"), (5, "m"), (3, "m")]),
    ("9 moons, 5 million", [(9, None), (5e6, None)]),
    ("50 %, 50 percent, 50per", [(50, "%"), (50, "%"), (50, None)]),
    ("$1.5 million; \u20ac5; 5 dollars", [(1.5e6, "$"), (5, "\u20ac"), (5, "$")]),
    ("20 degrees Celsius, 20\u00b0F, 20\u00b0", [(20, "\u00b0C"), (20, "\u00b0F"), (20, "\u00b0")]),
    ("9 km\u00b2, 9 square miles, 5 m^3, 7 m2", [(9, "m2"), (9, "m2"), (5, "m3"), (7, "m2")]),
    ("90 km/h, 25 meters per second", [(90, "m/s"), (25, "m/s")]),
    ("", []),
    ("10^999 1e999", [(10, None), (999, None), (1, None)]),
]


@pytest.mark.parametrize(("text", "wanted"), TEXTS)
def test_numbers_of_a_text(text: str, wanted: list[tuple[float, str | None]]) -> None:
    found = [(number.plain, number.dimension) for number in numbers_in(text)]
    assert [dimension for _, dimension in found] == [dimension for _, dimension in wanted]
    assert [plain for plain, _ in found] == pytest.approx([plain for plain, _ in wanted])


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("5 km", "5,000 metres", True),
        ("5 km", "5", True),  # a missing unit is ignored
        ("5 km", "5 miles", False),
        ("5 km", "5 kg", False),
        ("1 mile", "1.609344 km", True),
        ("2 hours", "120 min", True),
        ("2 years", "24 months", True),
        ("1 km\u00b2", "1,000,000 square meters", True),
        ("36 km/h", "10 m/s", True),
        ("\u00a35", "$5", False),
        ("0", "0.0", True),
        ("1,000", "1000.5", False),
    ],
)
def test_the_same_quantity(ours: str, theirs: str, same: bool) -> None:
    (first,), (second,) = numbers_in(ours), numbers_in(theirs)
    assert first.equals(second) is same
    assert second.equals(first) is same
