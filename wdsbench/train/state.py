"""The state of an unfinished fit on disk: what `--resume` goes on from.

    state.json                       where it stands, settings, loader state, figures so far
    tensors-<16 hex>.safetensors     weights, the best weights, the optimiser's moments, generators

The JSON is renamed into place last and names a complete tensors file by the XXH3 of its bytes, so a
killed writer leaves the old pair or the new.
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
from wdsbench.train.records import EpochRecord

STATE_NAME = "state.json"
FORMAT = 1
# Those of killed writers too, which are named as `wdsbench.files.temp_path` names them.
_TENSORS_GLOB = "tensors-*.safetensors"


@dataclass
class Progress:
    """How far a fit has come.

    Attributes:
        epoch: The epoch under way; the next one between two.
        step: Steps of gradient descent so far.
        batches: Batches of the epoch so far.
        loss: Summed over the labelled samples of the epoch so far.
        labelled: Their number.
        unlabelled: Samples of the epoch that were left out for want of a label.
        seconds: Spent on the epoch's training pass.
        records: One for each epoch that has ended.
        best_auroc: On validation; -1 before the first epoch has ended.
        best_epoch: Its epoch.
        finished: Nothing is left to do.
        unlabelled_before: As ``unlabelled``, of the epoch that ended last.
        total_steps: Length of the schedule; None: not known. Another number of workers may make an
            epoch's steps one more or less: the schedule stays.
    """

    epoch: int = 0
    step: int = 0
    batches: int = 0
    loss: float = 0.0
    labelled: int = 0
    unlabelled: int = 0
    seconds: float = 0.0
    records: list[EpochRecord] = field(default_factory=list)
    best_auroc: float = -1.0
    best_epoch: int = -1
    finished: bool = False
    unlabelled_before: int = 0
    total_steps: int | None = None

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.unlabelled_before = self.unlabelled
        self.batches, self.loss, self.labelled, self.unlabelled, self.seconds = 0, 0.0, 0, 0, 0.0


@dataclass(frozen=True)
class FitState:
    """Everything that the rest of a fit depends on.

    Attributes:
        progress: How far it has come.
        weights: The detector's ``state_dict``.
        best_weights: Of the best epoch; empty before the first has ended.
        moments: The optimiser's tensors, by ``"<parameter>.<name>"``.
        generators: State of torch's generators, by ``"<rank>.cpu"`` and ``"<rank>.cuda"``.
        loader: The training loader's ``state_dict``; None between epochs of a loader without one.
        setting: What must be the same when the fit goes on (settings, data, labels, ranks).
    """

    progress: Progress
    weights: dict[str, Tensor]
    best_weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    generators: dict[str, Tensor]
    loader: dict[str, Any] | None
    setting: dict[str, Any]


_GROUPS = ("weights", "best_weights", "moments", "generators")


def save_state(state: FitState, folder: Path) -> None:
    """Write ``state`` into ``folder``; an older one is replaced."""
    tensors = {
        f"{group}/{name}": tensor.detach().cpu().contiguous().clone()
        for group in _GROUPS
        for name, tensor in getattr(state, group).items()
    }
    content = safetensors.torch.save(tensors)
    tensors_name = f"tensors-{xxhash.xxh3_64_hexdigest(content)}.safetensors"
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


def load_state(folder: Path) -> FitState | None:
    """Return the state in ``folder``; None where there is none.

    Raises:
        DetectorError: It is damaged.
    """
    path = folder / STATE_NAME
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']}, not {FORMAT}")
        content = (folder / value["tensors"]).read_bytes()
        if value["tensors"] != f"tensors-{xxhash.xxh3_64_hexdigest(content)}.safetensors":
            raise ValueError(f"{value['tensors']} is not what was written")
        tensors = safetensors.torch.load(content)
        progress = Progress(**value["progress"])
        records = [EpochRecord(**record) for record in value["progress"]["records"]]
        groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
        for name, tensor in tensors.items():
            group, _, rest = name.partition("/")
            groups[group][rest] = tensor
        return FitState(
            progress=replace(progress, records=records),
            loader=value["loader"],
            setting=value["setting"],
            **groups,
        )
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise _damaged(path, error) from error


def saved_setting(folder: Path) -> dict[str, Any] | None:
    """Return the setting of the state in ``folder`` without reading a tensor; None without one.

    Raises:
        DetectorError: It is damaged.
    """
    path = folder / STATE_NAME
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["setting"]
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def remove_state(folder: Path) -> None:
    """Remove what `save_state` wrote, and ``folder`` unless it holds other files."""
    path = folder / STATE_NAME
    path.unlink(missing_ok=True)  # first: it names a complete tensors file
    temp_path(path).unlink(missing_ok=True)
    remove_versions(folder, _TENSORS_GLOB)
    remove_if_empty(folder)


def require_same(then: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Check that a fit goes on under the setting it began with.

    Raises:
        DetectorError: Something that its result depends on is another.
    """
    for name in sorted({*then, *now}):
        if then.get(name) != now.get(name):
            raise DetectorError(
                f"{name} was {then.get(name)!r} when this training began and is {now.get(name)!r}"
                f" now; go on with the same, or train again without --resume ({folder})"
            )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of an optimiser's state by parameter number and name."""
    found = {}
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            found[f"{number}.{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return found


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors of `optimizer_tensors` back."""
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
