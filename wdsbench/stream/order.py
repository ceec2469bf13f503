"""Where randomness comes from: a hash of what an order may depend on, and nothing else (no clock,
no pid).
"""

from __future__ import annotations

import random

import xxhash


class OrderRandom(random.Random):
    """Python's generator with a shorter way to an integer.

    WebDataset's shuffle draws one ``randint`` a sample; the library's own rejects until no number
    is favoured, which costs four times as much as the rest of the stage. One multiplication favours
    numbers by less than 2^-43 of their share for the sizes of shuffle buffers.
    """

    def randint(self, a: int, b: int) -> int:
        """Return an integer of ``a .. b``, both included."""
        return a + int(self.random() * (b - a + 1))


def order_rng(*parts: int | str) -> OrderRandom:
    """Return a generator seeded by the XXH3-64 of ``parts``; each stage passes its own name."""
    text = "\0".join(str(part) for part in parts)
    return OrderRandom(xxhash.xxh3_64_intdigest(text.encode()))
