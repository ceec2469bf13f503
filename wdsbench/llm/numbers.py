"""Numbers with units in texts.

    1,234,567   1 234 567   1'234'567   1.234.567   -5.5   2nd   1.2e6   3 x 10^8   1.5 million

``1,234`` has a thousands separator, ``1.234`` is a decimal. Digits within a word ("H2O") are no
number, and neither are numbers in words ("two"). A unit follows the number, a currency sign may
precede it; units of one dimension are converted (5 km = 5000 m), except temperatures. Other words
after a number ("5 moons") are no unit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

_TOLERANCE: Final = 1e-9  # relative; for the rounding of factors such as 0.3048
_SPACE: Final = "[ \u00a0\u2009\u202f]"
_SCALES: Final = {
    "hundred": 1e2,
    "thousand": 1e3,
    "million": 1e6,
    "billion": 1e9,
    "trillion": 1e12,
}
_CURRENCIES: Final = "$\u20ac\u00a3\u00a5"
#: Dimension -> factor -> names as regular expressions, in lower case; a plural "s" may follow.
_UNITS: Final[dict[str, dict[float, str]]] = {
    "m": {
        1e-9: "nm nanomet(?:er|re)",
        1e-3: "mm millimet(?:er|re)",
        1e-2: "cm centimet(?:er|re)",
        1.0: "m met(?:er|re)",
        1e3: "km kilomet(?:er|re)",
        0.0254: "inch(?:es)?",
        0.3048: "ft foot feet",
        0.9144: "yd yard",
        1609.344: "mi mile",
    },
    "kg": {
        1e-6: "mg milligram",
        1e-3: "g gram",
        1.0: "kg kilogram",
        1e3: "tonne",
        0.45359237: "lb",
        0.028349523125: "oz ounce",
    },
    "s": {
        1e-3: "ms millisecond",
        1.0: "s sec second",
        60.0: "min minute",
        3600.0: "h hr hour",
        86400.0: "day",
        604800.0: "week",
    },
    "month": {1.0: "month", 12.0: "yr year", 120.0: "decade", 1200.0: "century centurie"},
    "m/s": {0.44704: "mph", 1 / 3.6: "kmh kph"},
    "l": {1e-3: "ml millilit(?:er|re)", 1.0: "l lit(?:er|re)"},
    "%": {1.0: r"% percent per\scent"},
    "\u00b0C": {1.0: r"\u00b0\s?c (?:degrees?\s)?celsius"},
    "\u00b0F": {1.0: r"\u00b0\s?f (?:degrees?\s)?fahrenheit"},
    "\u00b0": {1.0: r"\u00b0 degree"},
    "$": {1.0: "dollar usd"},
    "\u20ac": {1.0: "euro eur"},
    "\u00a3": {1.0: "gbp"},
    "\u00a5": {1.0: "yen jpy"},
}
#: (pattern, dimension, factor), the longest names first.
_NAMES: Final = sorted(
    (
        (name, dimension, factor)
        for dimension, names_of in _UNITS.items()
        for factor, names in names_of.items()
        for name in names.split()
    ),
    key=lambda entry: -len(entry[0]),
)
_DIGITS: Final = rf"""
    (?<![^\W_])                                    # not within a word
    (?P<sign>(?<!\w)[-\u2212])?
    (?P<currency>[{_CURRENCIES}]{_SPACE}?)?
    (?P<digits>
        \d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?     # 1,234.5
      | \d{{1,3}}(?:['\u2019]\d{{3}})+(?!\d)(?:\.\d+)?
      | \d{{1,3}}(?:{_SPACE}\d{{3}})+(?!\d)(?:\.\d+)?
      | \d{{1,3}}(?:\.\d{{3}}){{2,}}(?!\d)(?:,\d+)?  # 1.234.567,8
      | \d+(?:\.\d+)? | \.\d+
    )
    (?:e(?P<exponent>[-+]?\d{{1,2}})(?!\w)
      | {_SPACE}?[x\u00d7*]{_SPACE}?10\^(?P<power>[-\u2212]?\d{{1,2}}))?
    (?:st|nd|rd|th)?
    (?:[\s-](?P<scale>{"|".join(_SCALES)})s?\b)?
"""
_UNIT: Final = rf"(?:{'|'.join(name for name, _, _ in _NAMES)})s?"
_NUMBER: Final = re.compile(_DIGITS, re.VERBOSE | re.IGNORECASE)
_UNITS_AFTER: Final = re.compile(
    rf"""[\s-]?(?P<before>(?:square|sq\.?|cubic)\s)?(?P<unit>{_UNIT})
    (?P<after>[\u00b2\u00b323]|\^[23])?
    (?:(?:/|\sper\s|\san?\s)(?P<each>{_UNIT}))?(?![^\W_])""",
    re.VERBOSE | re.IGNORECASE,
)
_POWERS: Final = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "\u00b2": 2, "\u00b3": 3}


@dataclass(frozen=True)
class Number:
    """A number in a text."""

    plain: float  # without its unit
    value: float  # in the base unit of its dimension
    dimension: str | None  # None: no known unit

    def equals(self, other: Number) -> bool:
        """Return True for the same quantity; a unit that one of the two lacks is ignored."""
        if self.dimension is None or other.dimension is None:
            return math.isclose(self.plain, other.plain, rel_tol=_TOLERANCE)
        return self.dimension == other.dimension and math.isclose(
            self.value, other.value, rel_tol=_TOLERANCE
        )


def numbers_in(text: str) -> list[Number]:
    """Return the numbers of a text in their order."""
    found = []
    place = 0
    while (match := _NUMBER.search(text, place)) is not None:
        plain, place = _plain(match), match.end()
        dimension = match["currency"] and match["currency"][0]
        factor = 1.0
        unit = _UNITS_AFTER.match(text, place)
        if dimension is None and unit is not None:
            dimension, factor = _dimension(unit)
            place = unit.end()
        found.append(Number(plain, plain * factor, dimension))
    return found


def _plain(match: re.Match[str]) -> float:
    digits = re.sub(rf"['\u2019]|{_SPACE}", "", match["digits"])
    if digits.count(".") > 1:  # 1.234.567,8
        digits = digits.replace(".", "").replace(",", ".")
    number = float(digits.replace(",", ""))
    exponent = match["exponent"] or match["power"]
    if exponent is not None:
        number *= 10.0 ** int(exponent.replace("\u2212", "-"))
    number *= _SCALES.get((match["scale"] or "").lower(), 1.0)
    return -number if match["sign"] else number


def _dimension(match: re.Match[str]) -> tuple[str, float]:
    """Return the dimension of a unit (``m``, ``m2``, ``m/s``) and its factor."""
    dimension, factor = _unit(match["unit"])
    power = match["after"] or (match["before"] or "").strip().lower()
    if power:
        exponent = _POWERS[power] if power in _POWERS else int(power[-1])
        dimension, factor = f"{dimension}{exponent}", factor**exponent
    if match["each"] is not None:
        of, divisor = _unit(match["each"])
        dimension, factor = f"{dimension}/{of}", factor / divisor
    return dimension, factor


def _unit(text: str) -> tuple[str, float]:
    return next(
        (dimension, factor)
        for name, dimension, factor in _NAMES
        if re.fullmatch(f"{name}s?", text, re.IGNORECASE)
    )
