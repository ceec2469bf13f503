"""How a data set was made, as ``index.json`` records it: names of files, no paths and no times.

Only the keys that were set are written, so an index that is read and written again keeps its form.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeGuard

from pydantic import BaseModel, ConfigDict, NonNegativeInt, field_validator, model_serializer


def is_layer_list(value: object) -> TypeGuard[list[int]]:
    """Return whether ``value`` is a list of a model's layers: integers from 0, ascending."""
    return (
        isinstance(value, list)
        and all(type(number) is int for number in value)
        and all(before < after for before, after in pairwise([-1, *value]))
    )


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PackedFile(_Entry):
    """A raw trace file and the number of its traces that are samples."""

    file: str
    samples: NonNegativeInt


class Appended(_Entry):
    """One run of ``wdsbench pack --append``: the number of its files, and its score file."""

    inputs: NonNegativeInt
    scores: str | None


class Repaired(_Entry):
    """The last run of ``wdsbench verify --repair``; ``lost_before`` counts earlier repairs, and
    ``list`` is the file that lists lost samples.
    """

    samples_before: NonNegativeInt
    samples: NonNegativeInt
    lost: NonNegativeInt
    lost_before: NonNegativeInt
    shards: tuple[str, ...]
    list: str


class Provenance(BaseModel):
    """How a data set was made. All attributes may be absent; unknown keys are kept.

    Attributes:
        wdsbench: Version that packed it.
        inputs: The raw trace files, in order.
        scores: Name of the score file, ``score_column`` and ``threshold``; None without one.
        missing_score: Treatment of traces without a score: error, drop or keep.
        dropped: Traces dropped because they have no score.
        numbered: Samples whose trace number was given by packing; None if that is not known.
        split_by: ``"question"`` or ``"file"``.
        attention: Kinds of attention that were requested.
        edge_rule: Rule of the edges of the mean over heads.
        head_threshold: Least weight of a head's edge.
        reduction: File with the components that states were reduced with.
        remarks: Changes that readers made to bring traces into form, with their counts.
        layers: Numbers of the stored layers in the model, ascending; None: all of them.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    wdsbench: str | None = None
    inputs: list[PackedFile] = []
    scores: str | None = None
    score_column: str | None = None
    threshold: float | None = None
    missing_score: str | None = None
    dropped: NonNegativeInt = 0
    numbered: NonNegativeInt | None = None
    split_by: str | None = None
    attention: list[str] | None = None
    edge_rule: str | None = None
    head_threshold: float | None = None
    reduction: str | None = None
    remarks: dict[str, NonNegativeInt] | None = None
    layers: list[int] | None = None
    appended: list[Appended] = []
    repaired: Repaired | None = None

    @field_validator("layers", mode="before")
    @classmethod
    def _check_layers(cls, value: object) -> object:
        if value is not None and not is_layer_list(value):
            raise ValueError(f"layers are {str(value)[:200]}, expected ascending integers")
        return value

    @model_serializer(mode="wrap")
    def _only_set(self, serialize: Callable[[Provenance], dict[str, Any]]) -> dict[str, Any]:
        values = serialize(self)
        return {name: value for name, value in values.items() if name in self.model_fields_set}
