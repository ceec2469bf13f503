"""Detectors on disk: one folder with a JSON card and the weights in safetensors.

    detector.json                  name, shape, layers, token, sign, threshold, temperature,
                                   properties of the training data, name of the weights file
    weights-<16 hex>.safetensors   weights and input scale, named by the XXH3 of its bytes

The card is renamed into place last and names a complete weights file, so a killed writer leaves the
old pair or the new one.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pydantic
import safetensors
import safetensors.torch
import torch
import xxhash

from wdsbench.detect.registry import DetectorShape, Kind, detector_spec
from wdsbench.errors import DetectorError
from wdsbench.files import remove_if_empty, remove_versions, write_json, write_whole
from wdsbench.train.fitted import FittedDetector, StoredImages, StoredTraces

CARD_NAME = "detector.json"
FORMAT = 2
_WEIGHTS_GLOB = "weights-*.safetensors"


class _Shape(pydantic.BaseModel, extra="forbid", strict=True):
    num_layers: int = pydantic.Field(ge=1)
    num_features: int = pydantic.Field(ge=1)
    hidden: int = pydantic.Field(ge=1)
    depth: int = pydantic.Field(ge=1)
    dropout: float = pydantic.Field(ge=0, lt=1)
    num_heads: int = pydantic.Field(ge=0)


class _Images(pydantic.BaseModel, extra="forbid", strict=True):
    dtype: Literal["uint8", "uint16", "int16", "float32"]
    range: Literal["image", "channel"]
    channels: tuple[int, ...] | None


class _Traces(pydantic.BaseModel, extra="forbid", strict=True):
    num_layers: int = pydantic.Field(ge=1)
    num_features: int = pydantic.Field(ge=1)
    num_heads: int = pydantic.Field(ge=0)
    reduce: str | None
    reduction: str | None
    edge_rule: str | None
    head_threshold: float | None
    model_layers: tuple[int, ...] | None = None  # absent if all are stored
    images: _Images | None = None  # absent if they are traces, or images of unknown origin

    def stored(self) -> StoredTraces:
        """Return the properties of the data set."""
        values = self.model_dump()
        images = values.pop("images")
        return StoredTraces(**values, images=images and StoredImages(**images))


class _Card(pydantic.BaseModel, extra="forbid", strict=True):
    format: Literal[2]
    detector: str
    kind: Kind
    shape: _Shape | None
    layers: list[int] | None
    sign: Literal[-1, 1]
    threshold: float | None
    temperature: float | None = pydantic.Field(gt=0)
    token: Literal["last_answer", "first_answer", "mean_answer", "last_prompt"]
    traces: _Traces | None
    weights: str | None = pydantic.Field(pattern=r"^weights-[0-9a-f]{16}\.safetensors$")


def save_detector(fitted: FittedDetector, folder: Path) -> Path:
    """Write ``fitted`` into ``folder`` in place of an older one; return the card's path."""
    weights_name: str | None = None
    if fitted.module is not None:
        tensors = {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in fitted.module.state_dict().items()
        }
        content = safetensors.torch.save(tensors)
        weights_name = f"weights-{xxhash.xxh3_64_hexdigest(content)}.safetensors"
        write_whole(folder / weights_name, content)
    card: dict[str, Any] = {
        "format": FORMAT,
        "detector": fitted.spec.name,
        "kind": fitted.spec.kind,
        "shape": None if fitted.shape is None else asdict(fitted.shape),
        "layers": None if fitted.layers is None else list(fitted.layers),
        "sign": fitted.sign,
        "threshold": fitted.threshold,
        "temperature": fitted.temperature,
        "token": fitted.token,
        "traces": None if fitted.traces is None else asdict(fitted.traces),
        "weights": weights_name,
    }
    for name in ("model_layers", "images"):
        if fitted.traces is not None and getattr(fitted.traces, name) is None:
            del card["traces"][name]
    write_json(folder / CARD_NAME, card)
    remove_versions(folder, _WEIGHTS_GLOB, but=weights_name)
    return folder / CARD_NAME


def remove_detector(folder: Path) -> None:
    """Remove card and weights, and ``folder`` if it is then empty."""
    (folder / CARD_NAME).unlink(missing_ok=True)  # first: a card names a complete weights file
    remove_versions(folder, _WEIGHTS_GLOB)
    remove_if_empty(folder)


def load_detector(path: str | Path) -> FittedDetector:
    """Return the detector in the folder (or with the card) ``path``, on the CPU.

    Raises:
        DetectorError: Card or weights are missing or damaged, of another format, or do not match.
    """
    given = Path(path)
    card_path = given / CARD_NAME if given.is_dir() else given
    try:
        card = _Card.model_validate_json(card_path.read_bytes())
    except OSError as error:
        raise DetectorError(
            f"no checkpoint at {given}: {error.strerror}; pass a folder with a {CARD_NAME}"
        ) from error
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DetectorError(f"{card_path}: {place or 'content'}: {first['msg']}") from error
    try:
        spec = detector_spec(card.detector)
    except ValueError as error:
        raise DetectorError(f"{card_path}: {error}") from error
    detector = FittedDetector(
        spec,
        layers=None if card.layers is None else tuple(card.layers),
        sign=card.sign,
        threshold=card.threshold,
        temperature=card.temperature,
        token=card.token,
        traces=None if card.traces is None else card.traces.stored(),
    )
    if spec.build is None:
        return detector
    if card.shape is None or card.weights is None:
        raise DetectorError(f"{card_path}: detector {card.detector} needs a shape and weights")
    shape = DetectorShape(**card.shape.model_dump())
    try:
        with torch.random.fork_rng(devices=[]):  # weights are initialised, then replaced
            module = spec.build(shape)
    except DetectorError as error:
        raise DetectorError(f"{card_path}: shape: {error}") from error
    weights_path = card_path.parent / card.weights
    try:
        tensors = safetensors.torch.load_file(weights_path)
        module.load_state_dict(tensors)
    except (OSError, safetensors.SafetensorError, RuntimeError) as error:
        detail = " ".join(str(error).split())
        raise DetectorError(
            f"{weights_path}: cannot be used as weights of {card.detector}: {detail}"
        ) from error
    module.eval()
    return replace(detector, shape=shape, module=module)
