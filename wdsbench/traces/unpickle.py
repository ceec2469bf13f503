"""Read pickles of traces without running anything that they name.

A pickle can name and call any importable object. This reader resolves only the (module, name) pairs
of one table, and to sealed stand-ins of ours instead of the functions of NumPy and torch. They have
neither a ``__dict__`` nor settable attributes, so the BUILD opcode cannot change the state of this
process. ``numpy.dtype`` returns a stand-in too: an object dtype with the flags of plain bytes would
turn bytes of the file into pointers. Torch tensors are read by ``torch.load(weights_only=True)``
and become NumPy arrays.

Protocols 0 to 5, NumPy 1 and 2, and torch CPU and CUDA tensors are supported.
"""

from __future__ import annotations

import copyreg
import pickle
from typing import Any, BinaryIO, Never

from wdsbench.errors import TraceError
from wdsbench.traces.arrays import damaged_file
from wdsbench.traces.stand_ins import ALLOWED, printable


def load_pickle(stream: BinaryIO, *, file: str | None = None) -> object:
    """Return the next object pickled in ``stream``, with all arrays and tensors as NumPy arrays.

    ``stream`` is read to the end of that pickle; it has ``read``, ``readline`` and, for speed,
    ``readinto`` and ``peek``. ``file`` is the name for errors.

    Raises:
        TraceError: The pickle names an object outside the allow-list (never imported, never
            called), is cut short or damaged, or does not fit in memory.
    """
    # EXT opcodes look into this process-wide cache before they call find_class; clearing it is
    # always safe.
    copyreg.clear_extension_cache()
    try:
        return _TraceUnpickler(stream).load()
    except TraceError as error:
        raise TraceError(error.detail, file=file) from error
    except MemoryError as error:
        raise TraceError(
            "the pickle needs more memory than this machine has: the file is damaged, or "
            "holds too many traces; write fewer traces into one file.",
            file=file,
        ) from error
    except Exception as error:  # a damaged pickle can raise anything
        raise damaged_file("pickle", error, file) from error
    finally:
        copyreg.clear_extension_cache()


class _TraceUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        """Return the stand-in for exactly this pair; dotted names are not resolved."""
        stand_in = ALLOWED.get((module, name))
        if stand_in is None:
            raise TraceError(
                f"the pickle names {printable(module)}.{printable(name)}, which is not allowed in "
                "a trace (NumPy arrays and scalars, torch tensors, plain Python values); it was "
                "not run. Save the traces as plain arrays, numbers, strings, lists and dicts."
            )
        return stand_in

    def persistent_load(self, pid: Any, /) -> Never:  # noqa: ARG002
        """Raise an error: only the program that wrote persistent ids can resolve them."""
        raise TraceError(
            "the pickle refers to objects outside itself (persistent ids); save the traces with "
            "pickle.dump, or with torch.save under a name ending in .pt."
        )
