"""The member kinds a sample can have: one table, one row per kind.

A kind is one or more members of a sample that belong together, such as the three members of
``edges``. All other rooms read this table. Shapes are written in these sizes:

    L layers · T tokens · t tokens with stored states (the last t of T) · D features · H heads ·
    E edges, any number · C channels and P pixels of an image patch

A sample has hidden states or an image patch, one of the kinds in :data:`TENSORS`. In the table and
in the decoder a patch is a stack of matrices like states: C takes the place of L, P of t and D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

ATTENTION: Final = "attention.npy"
EDGES_INDEX: Final = "edges_index.npy"
EDGES_POINTER: Final = "edges_ptr.npy"
EDGES_WEIGHT: Final = "edges_weight.npy"
HEADS_INDEX: Final = "heads_index.npy"
HEADS_POINTER: Final = "heads_ptr.npy"
HEADS_WEIGHT: Final = "heads_weight.npy"
HIDDEN: Final = "hidden.npy"
HIDDEN_SCALE: Final = "hidden_scale.npy"
IMAGE: Final = "image.npy"
IMAGE_RANGE: Final = "image_range.npy"
META: Final = "meta.json"
SKETCH: Final = "sketch.npy"

#: Last axis of a sketch; csrc/graph/sketch.hpp has the formulas and their sources.
SKETCH_VALUES: Final = ("self_attention", "laplacian", "lookback", "entropy")

JSON: Final = "json"
_UNSIGNED: Final = ("|u1", "<u2", "<u4")


@dataclass(frozen=True)
class Sizes:
    """L, T, t, D and H of one sample; H is 0 where nothing of single heads is stored."""

    layers: int
    tokens: int
    states: int
    features: int
    heads: int


_AXES: Final[dict[str, Callable[[Sizes], int]]] = {
    "L": lambda sizes: sizes.layers,
    "L + 1": lambda sizes: sizes.layers + 1,
    "L * H + 1": lambda sizes: sizes.layers * sizes.heads + 1,
    "H": lambda sizes: sizes.heads,
    "T": lambda sizes: sizes.tokens,
    "T * (T + 1) / 2": lambda sizes: sizes.tokens * (sizes.tokens + 1) // 2,
    "t": lambda sizes: sizes.states,
    "D": lambda sizes: sizes.features,
    "C": lambda sizes: sizes.layers,
    "P": lambda sizes: sizes.features,
}
#: Axes of the same size in every sample of a data set.
_SHARED_AXES: Final = ("L", "L + 1", "L * H + 1", "H", "D", "C", "P")


@dataclass(frozen=True)
class MemberSpec:
    """One member of a kind: its name after the key, valid dtypes as NumPy writes them
    (``("json",)`` for JSON), and its axes: numbers and names of sizes (``"L"``, ``"T * (T + 1) /
    2"``, ``"E"``).
    """

    name: str
    dtypes: tuple[str, ...]
    axes: tuple[int | str, ...] = ()
    required: bool = True

    def shape(self, sizes: Sizes) -> tuple[int | None, ...]:
        """Return the shape in a sample of these sizes; None for the axis E."""
        return tuple(
            axis if isinstance(axis, int) else _AXES[axis](sizes) if axis in _AXES else None
            for axis in self.axes
        )

    def mismatch(self, dtype: str, shape: Sequence[int], sizes: Sizes) -> str | None:
        """Return how dtype and shape of an array differ from the table's; None if they fit."""
        expected = self.shape(sizes)
        if (
            dtype in self.dtypes
            and len(shape) == len(expected)
            and all(size in (None, found) for size, found in zip(expected, shape, strict=True))
        ):
            return None
        sizes_text = ", ".join("E" if size is None else str(size) for size in expected)
        shape_text = f"({sizes_text},)" if len(expected) == 1 else f"({sizes_text})"
        dtypes = " or ".join(self.dtypes)
        return f"shape {tuple(shape)} of {dtype}, expected {shape_text} of {dtypes}"


@dataclass(frozen=True)
class MemberKind:
    """One row of the table.

    Attributes:
        name: The field's name in ``index.json``.
        members: Its members, sorted by name.
        main: Name of the member that a sample has if and only if it has the kind.
        pack_option: Option of ``wdsbench pack`` that makes it; "" if every sample has it.
        remedy: What to do if a data set does not have it.
        axes: Shape of the field in ``index.json`` if it is not that of the main member.
        loader_field: True if ``TraceLoader(fields=(name,))`` reads it in Python, one array per
            sample.
    """

    name: str
    members: tuple[MemberSpec, ...]
    main: str
    pack_option: str
    remedy: str
    axes: tuple[int | str, ...] = ()
    loader_field: bool = False

    @property
    def main_spec(self) -> MemberSpec:
        return next(spec for spec in self.members if spec.name == self.main)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the members that every sample with this kind has."""
        return tuple(spec.name for spec in self.members if spec.required)

    def index_shape(self, layers: int, features: int, heads: int) -> list[int | None]:
        """Return the shape for ``index.json``: None for axes that differ per sample."""
        sizes = Sizes(layers, 0, 0, features, heads)
        return [
            axis if isinstance(axis, int) else _AXES[axis](sizes) if axis in _SHARED_AXES else None
            for axis in self._field_axes
        ]

    def heads_axis(self) -> int | None:
        """Return the axis of H in the field's shape, or None."""
        return self._field_axes.index("H") if "H" in self._field_axes else None

    @property
    def _field_axes(self) -> tuple[int | str, ...]:
        return self.axes or self.main_spec.axes


_REPACK: Final = "repack with --attention {} from traces that have attention maps"


def _edge_kind(name: str, pointer: str, axes: tuple[int | str, ...]) -> MemberKind:
    return MemberKind(
        name,
        (
            MemberSpec(f"{name}_index.npy", _UNSIGNED, (2, "E")),
            MemberSpec(f"{name}_ptr.npy", ("<u4",), (pointer,)),
            MemberSpec(f"{name}_weight.npy", ("<f2",), ("E",)),
        ),
        main=f"{name}_weight.npy",
        pack_option=f"--attention {name}",
        remedy=_REPACK.format(name),
        axes=axes,
    )


#: The table, by name. Rows are in the order of ``index.json``.
KINDS: dict[str, MemberKind] = {
    kind.name: kind
    for kind in (
        MemberKind(
            "hidden",
            (
                MemberSpec(HIDDEN, ("<f2", "<f4", "<f8"), ("L", "t", "D")),
                MemberSpec(HIDDEN_SCALE, ("<f4",), ("L",), required=False),
            ),
            main=HIDDEN,
            pack_option="",
            remedy="pack raw traces; this data set holds images",
        ),
        MemberKind(
            "image",
            (
                MemberSpec(IMAGE, ("|u1", "<u2", "<f2"), ("C", "P", "P")),
                MemberSpec(IMAGE_RANGE, ("<f4",), ("C", 2)),
            ),
            main=IMAGE,
            pack_option="--images",
            remedy="pack images with --images; this data set holds traces",
        ),
        MemberKind(
            "meta",
            (MemberSpec(META, (JSON,)),),
            main=META,
            pack_option="",
            remedy="pack the raw traces again",
        ),
        _edge_kind("edges", "L + 1", ("E",)),
        _edge_kind("heads", "L * H + 1", ("L", "H", "E")),
        MemberKind(
            "sketch",
            (MemberSpec(SKETCH, ("<f2",), ("L", "H", "T", len(SKETCH_VALUES))),),
            main=SKETCH,
            pack_option="--attention sketch",
            remedy=_REPACK.format("sketch"),
            loader_field=True,
        ),
        MemberKind(
            "full",
            (MemberSpec(ATTENTION, ("<f2",), ("L", "H", "T * (T + 1) / 2")),),
            main=ATTENTION,
            pack_option="--attention full",
            remedy=_REPACK.format("full"),
        ),
    )
}


#: Kinds of which every sample has one, the same in the whole data set, and the member that its
#: values are decoded with: factors ``[L]``, or ranges (low, high) ``[C, 2]``.
TENSORS: Final = {"hidden": HIDDEN_SCALE, "image": IMAGE_RANGE}


def member_names() -> tuple[str, ...]:
    """Return the names of all members, sorted; a sample's members have this order in a shard."""
    return tuple(sorted(spec.name for kind in KINDS.values() for spec in kind.members))


def member_specs() -> dict[str, MemberSpec]:
    return {spec.name: spec for kind in KINDS.values() for spec in kind.members}


def attention_kinds() -> Iterator[MemberKind]:
    """Yield the kinds that are made from attention maps."""
    return (kind for kind in KINDS.values() if kind.pack_option.startswith("--attention "))


def loader_kinds() -> dict[str, MemberKind]:
    """Return the kinds that a loader reads in Python, by name."""
    return {name: kind for name, kind in KINDS.items() if kind.loader_field}


def main_member(field: str) -> str:
    """Return the member by which an index counts the samples of a field."""
    return KINDS[field].main if field in KINDS else field
