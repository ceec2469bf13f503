"""Raw traces and pickles for the tests of this folder."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

LAYERS, HEADS, TOKENS, FEATURES = 3, 2, 5, 4


def make_raw(seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a raw trace in the documented form; ``changes`` replace keys, None removes them."""
    random = np.random.default_rng(seed)
    maps = np.tril(random.random((LAYERS, HEADS, TOKENS, TOKENS))).astype(np.float16)
    states = random.standard_normal((LAYERS, TOKENS, FEATURES)).astype(np.float16)
    raw: dict[str, Any] = {
        "hidden_states": list(states),
        "attentions": list(maps),
        "tokens": list(range(10, 10 + TOKENS)),
        "tokens_decoded": [f"t{i}" for i in range(TOKENS)],
        "generated_answer_clean": "an answer",
        "question_id": f"q{seed}",
        "prompt_length": 3,
        "token_logprobs": np.array([-0.5, -1.5], dtype=np.float32),
    }
    raw.update(changes)
    return {key: value for key, value in raw.items() if value is not None}


def numpy1_pickle(value: object, protocol: int) -> bytes:
    """Return ``value`` pickled under the module names of NumPy 1."""
    return renamed_globals(
        pickle.dumps(value, protocol), lambda name: name.replace("numpy._core", "numpy.core")
    )


def renamed_globals(data: bytes, rename: Callable[[str], str]) -> bytes:
    """Return a pickle with its text opcodes and globals renamed, their lengths adjusted."""
    parts: list[bytes] = []
    ops = list(pickletools.genops(data))
    for index, (opcode, argument, start) in enumerate(ops):
        end = ops[index + 1][2] if index + 1 < len(ops) else len(data)
        piece = data[start:end]
        if opcode.name == "FRAME":  # frames are optional, and their lengths would change
            continue
        if opcode.name == "GLOBAL" and rename(argument) != argument:
            module, name = rename(argument).split(" ", 1)
            piece = b"c" + module.encode() + b"\n" + name.encode() + b"\n"
        elif opcode.name == "SHORT_BINUNICODE" and rename(argument) != argument:
            text = rename(argument).encode()
            piece = b"\x8c" + bytes([len(text)]) + text
        parts.append(piece)
    return b"".join(parts)
