"""The state of an unfinished fit on disk, from which ``--resume`` continues.

    state.json                       progress, settings, loader state
    tensors-<16 hex>.safetensors     weights, best weights, optimiser moments, generators

The JSON file is renamed into place last and names a complete tensors file by the XXH3 of its bytes,
so a killed writer leaves the old pair or the new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from wdsbench.errors import DetectorError
from wdsbench.files import remove_if_empty, remove_versions, temp_path, write_json, write_whole
from wdsbench.train.log import EpochRecord
from wdsbench.train.stop import StopRequest

STATE_NAME = "state.json"
FORMAT = 1
_TENSORS_GLOB = "tensors-*.safetensors"


@dataclass
class FitProgress:
    """Progress of a fit.

    Attributes:
        epoch: Current epoch; between two epochs the next one.
        step: Optimiser steps so far.
        total_steps: Length of the learning rate schedule. It does not change on resume, although
            another number of workers can make an epoch one step longer or shorter.
        records: One per finished epoch.
        batches: Batches of the epoch so far; likewise samples ``used`` and ``left_out``.
        loss: Sum of the loss over the samples used in the epoch so far.
        seconds: Seconds of the epoch's training pass so far.
        best: Best validation AUROC, or lowest validation error; None before the end of the first
            epoch.
        left_out_before: ``left_out`` of the last finished epoch.
    """

    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    records: list[EpochRecord] = field(default_factory=list)
    batches: int = 0
    loss: float = 0.0
    used: int = 0
    left_out: int = 0
    seconds: float = 0.0
    finished: bool = False
    best: float | None = None
    best_epoch: int = -1
    left_out_before: int = 0

    def next_epoch(self) -> None:
        """Start the next epoch."""
        self.epoch += 1
        self.left_out_before = self.left_out
        self.batches, self.loss, self.used, self.left_out, self.seconds = 0, 0.0, 0, 0, 0.0


@dataclass(frozen=True)
class FitState:
    """Everything the rest of a fit depends on.

    Attributes:
        weights: The detector's ``state_dict``.
        best_weights: Weights of the best epoch; empty before the end of the first.
        moments: Tensors of the optimiser, by ``"<parameter>.<name>"``.
        generators: States of torch's generators, by ``"<rank>.cpu"`` and ``"<rank>.cuda"``.
        loader: The training loader's ``state_dict``.
        setting: Settings, data and ranks that must not change on resume.
    """

    progress: FitProgress
    weights: dict[str, Tensor]
    best_weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    generators: dict[str, Tensor]
    loader: dict[str, Any]
    setting: dict[str, Any]


_GROUPS = ("weights", "best_weights", "moments", "generators")


@dataclass(frozen=True)
class StateSaver:
    """Saves and loads the state of one fit.

    Attributes:
        folder: None: nothing is saved.
        setting: Settings that must not change on resume.
        resume: True to load a saved state.
    """

    folder: Path | None = None
    setting: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    stop: StopRequest = field(default_factory=StopRequest)

    def load(self) -> FitState | None:
        """Return the saved state, None if there is none or the fit does not resume; raise
        DetectorError if it is damaged or its settings differ.
        """
        if self.folder is None or not self.resume:
            return None
        state = load_state(self.folder)
        if state is not None:
            require_same(state.setting, self.setting, self.folder)
        return state

    def save(self, progress: FitProgress, **parts: Any) -> None:
        """Save a state; ``parts`` are the other attributes of `FitState`."""
        assert self.folder is not None
        save_state(FitState(progress=progress, setting=self.setting, **parts), self.folder)


NO_SAVER = StateSaver()


def save_state(state: FitState, folder: Path) -> None:
    """Write ``state`` into ``folder`` in place of an older one."""
    tensors = {
        f"{group}/{name}": _whole(tensor)
        for group in _GROUPS
        for name, tensor in getattr(state, group).items()
    }
    content = safetensors.torch.save(tensors)
    tensors_name = _tensors_name(content)
    write_whole(folder / tensors_name, content)
    value = {
        "format": FORMAT,
        "progress": asdict(state.progress),
        "loader": state.loader,
        "setting": state.setting,
        "tensors": tensors_name,
    }
    write_json(folder / STATE_NAME, value)
    remove_versions(folder, _TENSORS_GLOB, but=tensors_name)


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU that fills its storage, as safetensors requires; a copy only where
    it does not: the tensors of a large detector are four times its weights.
    """
    tensor = tensor.detach().cpu().contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def load_state(folder: Path) -> FitState | None:
    """Return the state in ``folder``, None if there is none; DetectorError if it is damaged."""
    path = folder / STATE_NAME
    value = _read_json(path)
    if value is None:
        return None
    try:
        content = (folder / value["tensors"]).read_bytes()
        if value["tensors"] != _tensors_name(content):
            raise ValueError(f"{value['tensors']} does not match the hash in its name")
        groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
        for name, tensor in safetensors.torch.load(content).items():
            group, _, rest = name.partition("/")
            groups[group][rest] = tensor
        progress = FitProgress(**value["progress"])
        records = [EpochRecord(**record) for record in value["progress"]["records"]]
        return FitState(
            progress=replace(progress, records=records),
            loader=value["loader"],
            setting=value["setting"],
            **groups,
        )
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise _damaged(path, error) from error


def saved_setting(folder: Path) -> dict[str, Any] | None:
    """Return the settings of the state in ``folder``, as `load_state`, without reading tensors."""
    value = _read_json(folder / STATE_NAME)
    return None if value is None else dict(value["setting"])


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise ValueError(f"format is {value['format']}; this version reads {FORMAT}")
        if not isinstance(value["setting"], dict):
            raise TypeError("setting is not an object")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    return value


def _tensors_name(content: bytes) -> str:
    return f"tensors-{xxhash.xxh3_64_hexdigest(content)}.safetensors"


def remove_state(folder: Path) -> None:
    """Remove the files of `save_state`, and ``folder`` if it is then empty."""
    path = folder / STATE_NAME
    path.unlink(missing_ok=True)  # first: it names a complete tensors file
    temp_path(path).unlink(missing_ok=True)
    remove_versions(folder, _TENSORS_GLOB)
    remove_if_empty(folder)


def require_same(
    then: Mapping[str, Any], now: Mapping[str, Any], folder: Path, what: str = "training"
) -> None:
    """Raise DetectorError if a setting has changed since ``what`` started."""
    for name in sorted({*then, *now}):
        if then.get(name) != now.get(name):
            raise DetectorError(
                f"{name} was {then.get(name)!r} when this {what} began and is {now.get(name)!r}"
                f" now; resume with the same value, or start again without --resume ({folder})"
            )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of an optimiser's state by parameter number and name."""
    found = {}
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            found[f"{number}.{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return found


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors of `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for place, value in tensors.items():
        number, _, name = place.partition(".")
        state.setdefault(int(number), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _damaged(path: Path, error: Exception) -> DetectorError:
    return DetectorError(
        f"{path}: the saved state cannot be read ({error}); remove {path.parent} and train again"
    )
