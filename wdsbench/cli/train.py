"""``wdsbench train``: detectors on a data set, measured on its test split."""

from __future__ import annotations

import os
from functools import partial
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
    clip_norm: float = typer.Option(DEFAULTS.clip_norm, help="Largest norm of a gradient."),
    schedule: str = typer.Option(DEFAULTS.schedule, help="Of the learning rate: constant, cosine."),
    max_steps: int | None = typer.Option(None, help="At most so many steps [as epochs say]."),
    class_weight: str = typer.Option(
        DEFAULTS.class_weight, help="none, or balanced: both classes weigh the same."
    ),
    precision: str = typer.Option(DEFAULTS.precision, help="float32, or bf16 (autocast)."),
    compile_: bool = typer.Option(False, "--compile", help="Let torch compile the detectors."),
    deterministic: bool = typer.Option(False, help="The same numbers on a GPU, too."),
    layers: str | None = typer.Option(None, help="Layers to read, as 0,5,11 [all]."),
    seed: int = typer.Option(DEFAULTS.seed, help="Same seed, same numbers."),
    device: str | None = typer.Option(None, help="cpu, cuda, ... [cuda where there is one]."),
    shuffle: int = typer.Option(DEFAULTS.shuffle, help="Traces in the shuffle buffer."),
    num_workers: int = typer.Option(0, help="Reading processes."),
    threads: int | None = typer.Option(None, help="Decode threads [usable cores, at most 8]."),
    search: int | None = typer.Option(
        None,
        metavar="N",
        help="First try N settings (learning rate, hidden, depth, dropout), judged on validation;"
        " for lstm, gnn and others trained by gradient descent (extra: search).",
    ),
    seeds: int | None = typer.Option(
        None,
        metavar="N",
        help="Train N times, with the seeds from --seed on; figures are means with their spread.",
    ),
    resume: bool = typer.Option(
        False, help="Go on where an earlier run in --out was stopped; begin where none was."
    ),
    checkpoint_seconds: float = typer.Option(
        DEFAULTS.checkpoint_seconds, help="Between two savings of what --resume needs."
    ),
    rank_timeout_seconds: float = typer.Option(
        DEFAULTS.rank_timeout_seconds, help="A rank that waits longer for others gives up."
    ),
    tensorboard: bool = typer.Option(False, help="Write TensorBoard logs (extra: tensorboard)."),
    as_json: bool = typer.Option(False, "--json", help="Print results.json instead of the table."),
) -> None:
    """Train detectors on a data set; write results.json, metrics.jsonl, checkpoints and plots.

    On several GPUs, or several processes: torchrun --nproc-per-node N -m wdsbench train ...
    """
    from wdsbench.train.report import print_results
    from wdsbench.train.run import result_files, train

    if search is not None and seeds is not None:
        raise ValueError(
            f"--search {search} and --seeds {seeds} do not go together; search first, then give"
            " --seeds with the settings found"
        )
    names = all_words(detector)
    names = list(DETECTOR_NAMES) if names == ["all"] else names
    config = TrainConfig(
        epochs=epochs,
        patience=patience,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        hidden=hidden,
        depth=depth,
        dropout=dropout,
        clip_norm=clip_norm,
        schedule=schedule,
        max_steps=max_steps,
        class_weight=class_weight,
        precision=precision,
        compile=compile_,
        deterministic=deterministic,
        layers=None if layers is None else _layer_list(layers),
        shuffle=shuffle,
        checkpoint_seconds=checkpoint_seconds,
        rank_timeout_seconds=rank_timeout_seconds,
        tensorboard=tensorboard,
        seed=seed,
        device=device,
        num_workers=num_workers,
        threads=threads,
    )
    if search is not None:
        from wdsbench.train.search import search_and_train
        from wdsbench.train.trials import print_search

        results = search_and_train(
            shards,
            names,
            out,
            config,
            search,
            progress=bar,
            resume=resume,
            on_search=partial(print_search, console=stderr if as_json else stdout),
        )
    elif seeds is not None:
        from wdsbench.train.seeds import train_seeds

        once = partial(train, resume=resume)
        results = train_seeds(shards, names, out, config, seeds, train=once, progress=bar)
    else:
        results = train(shards, names, out, config, progress=bar, resume=resume)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and int(os.environ.get("RANK", "0")):
        return  # the first rank speaks for all
    if as_json:
        print_json(results.as_json())
        return
    print_results(results, stdout)
    searches = [] if search is None else [out / "search" / name / "search.json" for name in names]
    for path in (*result_files(out), *searches):
        stderr.print(f"  {path}", highlight=False, soft_wrap=True)


def _layer_list(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in all_words([text]))
    except ValueError:
        raise ValueError(f"--layers {text!r} is not a comma list of integers") from None
