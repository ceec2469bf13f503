"""Attention maps of a running model, taken layer by layer as they appear.

A hook on every module looks for what an attention module returns, ``(output, weights)`` with
weights ``[B, H, T, T]``, whatever the module is called. It takes each sample's part, as float16 on
the CPU, and reduces it at once; the weights themselves die with their layer, so that no more than
one layer's maps of a batch are ever held (``full``, which asks for all of them, apart).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.cores import usable_cores
from wdsbench.errors import ModelError
from wdsbench.records import ReducedAttention
from wdsbench.traces.attention import (
    AttentionRules,
    MapError,
    join_layers,
    reduce_maps,
)
from wdsbench.traces.reduced import reduced_to_raw

#: Maps from this size on are reduced on several threads, sample by sample. Handing a sample to a
#: thread takes 40 us, as long as reducing a map of 3 kB does; a map of 1 MB takes 3 ms.
_SHARED_BYTES: Final = 1 << 20


class RefusedTraceError(ModelError):
    """One trace cannot be used; the others of its batch can."""


class BatchMaps:
    """Attention of one batch, reduced layer by layer.

    Args:
        samples: Of each row (question id, tokens of the prompt, tokens of the answer). The batch is
            padded on the right to the longest.
        rules: Attention to keep; without any, no hook is set.
        layers: Layers to keep, from 0; None: all.
    """

    def __init__(
        self,
        samples: Sequence[tuple[str, int, int]],
        rules: AttentionRules,
        layers: Sequence[int] | None = None,
    ) -> None:
        self._samples = samples
        self._layers = None if layers is None else frozenset(layers)
        self._lengths = [prompt + answer for _, prompt, answer in samples]
        self._rules = rules
        self._full: list[list[NDArray[np.float16]]] = [[] for _ in samples]
        self._reduced: list[list[ReducedAttention]] = [[] for _ in samples]
        self._refused: dict[int, RefusedTraceError] = {}  # row -> what was wrong first
        self._found: list[str] = []  # class of the module, one for each map, in their order
        self._last: Callable[[], Any] = lambda: None
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def taken_from(self, model: Any) -> Iterator[None]:
        """Take the maps of the one forward pass that runs within."""
        with ExitStack() as stack:
            if self._rules.reduces:
                self._pool = stack.enter_context(ThreadPoolExecutor(usable_cores()))
            if self._rules.kinds:
                for module in model.modules():
                    handle = module.register_forward_hook(self._look)
                    stack.callback(handle.remove)
            yield

    def require_layers(self, layers: int) -> None:
        """Raise ModelError unless each of the model's layers gave one map."""
        found = len(self._found)
        if not self._rules.kinds or found == layers:
            return
        raise ModelError(
            f"the model returns {layers} layers of states, but {found} attention maps"
            f"{' (of ' + ', '.join(sorted(set(self._found))) + ')' if found else ''}; load it with"
            " attn_implementation 'eager' (load_model does), or extract with --attention none."
        )

    def raw(self, row: int) -> dict[str, Any]:
        """Return what a raw trace holds of the row's attention.

        Raises:
            RefusedTraceError: A map holds something else than probabilities; question and layer are
                named.
        """
        if row in self._refused:
            raise self._refused[row]
        raw: dict[str, Any] = {}
        if "full" in self._rules.kinds:
            raw["attentions"] = self._full[row]
        if self._rules.reduces:
            try:
                raw["reduced_attention"] = reduced_to_raw(join_layers(self._reduced[row]))
            except MapError as error:
                raise self._refusal(row, error) from error
        return raw

    def _look(self, module: Any, _inputs: Any, output: Any) -> None:
        """The hook: takes the weights in ``output``, if that is what it holds."""
        weights = self._weights_in(output)
        # A layer may hand on what its attention module returned; the inner module comes first.
        if weights is None or self._last() is weights:
            return
        self._last = weakref.ref(weights)
        layer = len(self._found)
        self._found.append(type(module).__name__)
        if self._layers is not None and layer not in self._layers:
            return
        maps = [self._map_of(weights, row) for row in range(len(self._samples))]
        if "full" in self._rules.kinds:
            for kept, own in zip(self._full, maps, strict=True):
                kept.append(own)
        if self._pool is not None:
            large = max(own.nbytes for own in maps) >= _SHARED_BYTES
            run = self._pool.map if large else map
            parts = run(self._reduce, range(len(maps)), maps, [layer] * len(maps))
            for reduced, part in zip(self._reduced, parts, strict=True):
                if part is not None:
                    reduced.append(part)

    def _weights_in(self, output: Any) -> torch.Tensor | None:
        if not isinstance(output, tuple | list):
            return None
        batch, longest = len(self._samples), max(self._lengths)
        for part in output[1:]:
            if (
                isinstance(part, torch.Tensor)
                and part.ndim == 4
                and (part.shape[0], *part.shape[2:]) == (batch, longest, longest)
                and part.is_floating_point()
            ):
                return part
        return None

    def _map_of(self, weights: torch.Tensor, row: int) -> NDArray[np.float16]:
        """Return the row's map ``[H, t, t]``, a copy, on the CPU."""
        length = self._lengths[row]
        own = weights[row, :, :length, :length].to(torch.float16, copy=True)
        values: NDArray[np.float16] = own.contiguous().cpu().numpy()
        return values

    def _reduce(self, row: int, own: NDArray[np.float16], layer: int) -> ReducedAttention | None:
        """Return the row's part of a layer; None of a row that is refused."""
        if row in self._refused:
            return None
        prompt_length = self._samples[row][1]
        try:
            return reduce_maps([own], self._rules, prompt_length=prompt_length, first_layer=layer)
        except MapError as error:
            self._refused[row] = self._refusal(row, error)
            return None

    def _refusal(self, row: int, error: MapError) -> RefusedTraceError:
        return RefusedTraceError(
            f"question {self._samples[row][0]}: {error}; load the model as float32 or bfloat16, or"
            " extract with --attention none."
        )
