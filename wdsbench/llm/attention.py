"""Attention maps of a running model, collected layer by layer.

A hook on every module recognises the result of an attention module, ``(output, weights)`` with
weights ``[B, H, T, T]``, whatever the module's name. It copies each sample's part to the CPU as
float16 and reduces it at once. The weights are freed with their layer, so that maps of one layer
of a batch are held at most (except for kind ``full``, which keeps all).
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
from wdsbench.traces.attention import AttentionRules, MapError, join_layers, reduce_maps
from wdsbench.traces.reduced import reduced_to_raw

#: Maps of this size or larger are reduced on several threads, sample by sample. Starting a task
#: takes 40 us, as long as reducing a map of 3 kB; a map of 1 MB takes 3 ms.
_SHARED_BYTES: Final = 1 << 20


class RefusedTraceError(ModelError):
    """One trace cannot be used; the others of its batch can."""


class BatchMaps:
    """Attention of one batch, reduced layer by layer.

    ``samples`` holds (question id, tokens of the prompt, tokens of the answer) of each row of a
    batch that is padded on the right. ``layers`` are those to keep (None: all).
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
        self._refused: dict[int, RefusedTraceError] = {}  # row -> first error
        self._found: list[str] = []  # class of the module of each map
        self._last: Callable[[], Any] = lambda: None
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def collect(self, model: Any) -> Iterator[None]:
        """Collect the maps of one forward pass in this context."""
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
        """Return the row's attention as keys of a raw trace."""
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
        """Collect the weights in ``output``, if there are any (the hook)."""
        weights = self._weights_in(output)
        # A layer may return the result of its attention module, whose hook ran before.
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
        """Return a copy of the row's map ``[H, t, t]`` on the CPU."""
        length = self._lengths[row]
        own = weights[row, :, :length, :length].to(torch.float16, copy=True)
        values: NDArray[np.float16] = own.contiguous().cpu().numpy()
        return values

    def _reduce(self, row: int, own: NDArray[np.float16], layer: int) -> ReducedAttention | None:
        """Return the row's part of a layer; None if the row is refused."""
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
