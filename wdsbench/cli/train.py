"""``wdsbench train``: detectors on a data set, measured on its test split."""

from __future__ import annotations

from pathlib import Path

import typer

from wdsbench.cli.terminal import all_words, bar, print_json, stderr, stdout
from wdsbench.detect.registry import DETECTOR_NAMES
from wdsbench.train.config import TrainConfig

EXAMPLE = "wdsbench train shards/ --detector lstm --out runs/lstm"

DEFAULTS = TrainConfig()

_DETECTOR_HELP = f"A comma list, or given again: {', '.join(DETECTOR_NAMES)}; or all."


def command(
    shards: Path = typer.Argument(..., help="Folder of the data set."),
    detector: list[str] = typer.Option(["lstm"], help=_DETECTOR_HELP),
    out: Path = typer.Option(Path("runs/train"), help="Folder for results and checkpoints."),
    epochs: int = typer.Option(
        DEFAULTS.epochs, help="At most so many passes over the training split."
    ),
    patience: int = typer.Option(
        DEFAULTS.patience, help="Epochs without a better validation AUROC before a stop."
    ),
    batch_size: int = typer.Option(DEFAULTS.batch_size, help="Traces a batch."),
    learning_rate: float = typer.Option(DEFAULTS.learning_rate, help="Of AdamW."),
    weight_decay: float = typer.Option(DEFAULTS.weight_decay, help="Of AdamW."),
    hidden: int = typer.Option(DEFAULTS.hidden, help="Width of trained detectors."),
    depth: int = typer.Option(DEFAULTS.depth, help="LSTM layers of trained detectors."),
    dropout: float = typer.Option(DEFAULTS.dropout, help="Of trained detectors."),
    layers: str | None = typer.Option(None, help="Layers to read, as 0,5,11 [all]."),
    seed: int = typer.Option(DEFAULTS.seed, help="Same seed, same numbers."),
    device: str | None = typer.Option(None, help="cpu, cuda, ... [cuda where there is one]."),
    num_workers: int = typer.Option(0, help="Reading processes."),
    threads: int | None = typer.Option(None, help="Decode threads [usable cores, at most 8]."),
    as_json: bool = typer.Option(False, "--json", help="Print results.json instead of the table."),
) -> None:
    """Train detectors on a data set; write results.json, metrics.jsonl, checkpoints and plots."""
    from wdsbench.train.report import print_results
    from wdsbench.train.run import result_files, train

    names = all_words(detector)
    config = TrainConfig(
        epochs=epochs,
        patience=patience,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        hidden=hidden,
        depth=depth,
        dropout=dropout,
        layers=None if layers is None else _layer_list(layers),
        seed=seed,
        device=device,
        num_workers=num_workers,
        threads=threads,
    )
    results = train(
        shards, list(DETECTOR_NAMES) if names == ["all"] else names, out, config, progress=bar
    )
    if as_json:
        print_json(results.as_json())
        return
    print_results(results, stdout)
    for path in result_files(out):
        stderr.print(f"  {path}", highlight=False, soft_wrap=True)


def _layer_list(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in all_words([text]))
    except ValueError:
        raise ValueError(f"--layers {text!r} is not a comma list of integers") from None
