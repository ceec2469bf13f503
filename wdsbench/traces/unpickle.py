"""Read pickles of traces without running anything that they name.

A pickle is a program: it names any importable object and calls it. The reader here resolves exact
(module, name) pairs from one table and nothing else, and what it resolves them to is not NumPy's or
torch's own function but a sealed stand-in of ours:

- a stand-in has neither a ``__dict__`` nor settable attributes, so that the BUILD opcode, which
  sets attributes on whatever lies on the pickle's stack, cannot change the state of this process;
- ``numpy.dtype`` gives a stand-in too, since a real dtype takes its flags from the pickle: an
  object dtype declared to hold plain bytes would turn bytes of the file into pointers;
- torch tensors become NumPy arrays at once (bfloat16 as float32); their bytes go through
  ``torch.load(weights_only=True)``, and torch is imported only when a pickle holds a tensor.

Covered: protocols 0 to 5, NumPy 1 and 2, torch CPU and CUDA tensors (loaded to the CPU), plain
containers.
"""

from __future__ import annotations

import copyreg
import pickle
from typing import Any, BinaryIO, Never

from wdsbench.errors import TraceError
from wdsbench.traces.stand_ins import ALLOWED, printable


def load_pickle(stream: BinaryIO, *, file: str | None = None) -> object:
    """Return the next object pickled in ``stream``; arrays come back as NumPy arrays.

    Reads up to the end of that pickle, so that a file that holds several is read by calling again.

    Args:
        stream: Binary file with ``read``, ``readline`` and, for speed, ``readinto`` and ``peek``.
        file: Name for errors.

    Raises:
        TraceError: The pickle names something outside the allow-list (never imported, never
            called), is cut short or damaged, or does not fit in memory.
    """
    # EXT opcodes look into this process-wide cache before they ask find_class; the cache may be
    # dropped at any time.
    copyreg.clear_extension_cache()
    try:
        return _TraceUnpickler(stream).load()
    except TraceError as error:
        raise TraceError(error.detail, file=file) from error
    except MemoryError as error:
        raise TraceError(
            "the pickle asks for more memory than this machine has: the file is damaged, or "
            "holds too many traces; write fewer traces into one file.",
            file=file,
        ) from error
    except Exception as error:  # a damaged pickle can raise anything
        said = str(error).splitlines()[0] if str(error) else "no detail"
        raise TraceError(
            f"not a readable pickle ({type(error).__name__}: {said}); the file is cut short or "
            "damaged, write or copy it again.",
            file=file,
        ) from error
    finally:
        copyreg.clear_extension_cache()


class _TraceUnpickler(pickle.Unpickler):
    """Unpickler whose every global is a stand-in from ``ALLOWED``."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the stand-in for exactly this pair; a dotted name is a pair of its own."""
        stand_in = ALLOWED.get((module, name))
        if stand_in is None:
            raise TraceError(
                f"the pickle names {printable(module)}.{printable(name)}, which is not on the "
                "list of what a trace may hold (NumPy arrays and scalars, torch tensors, plain "
                "Python values); nothing of it was run. Save the traces as plain arrays, "
                "numbers, strings, lists and dicts."
            )
        return stand_in

    def persistent_load(self, pid: Any, /) -> Never:  # noqa: ARG002
        """Refuse: persistent ids mean something only to the program that wrote them."""
        raise TraceError(
            "the pickle refers to objects outside itself (persistent ids); save the traces with "
            "pickle.dump, or with torch.save under a name ending in .pt."
        )
