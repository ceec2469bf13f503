"""Where randomness comes from: a hash of what an order may depend on, and nothing else (no clock,
no pid).
"""

from __future__ import annotations

import random

import xxhash


def order_rng(*parts: int | str) -> random.Random:
    """Return a generator seeded by the XXH3-64 of ``parts``; each stage passes its own name among
    them.
    """
    text = "\0".join(str(part) for part in parts)
    return random.Random(xxhash.xxh3_64_intdigest(text.encode()))
