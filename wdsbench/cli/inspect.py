"""``wdsbench inspect``: what data is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from wdsbench.cli.sources import names_shards
from wdsbench.cli.terminal import bar, print_json, stdout

EXAMPLE = "wdsbench inspect shards/ --sample g0042-1f2e3d4c5b6a7980"

#: Shards, files and tokens that are shown to people; --json lists all.
_SHOWN = 40


def command(
    sources: list[str] = typer.Argument(
        ..., help="Folder of a data set, tar files, or raw traces (a path or quoted pattern)."
    ),
    sample: str | None = typer.Option(None, help="One sample: its member key or question id."),
    ranges: int = typer.Option(16, help="Data set: random samples read for the layers' ranges."),
    seed: int = typer.Option(0, help="Of their choice."),
    as_json: bool = typer.Option(False, "--json", help="Print everything as one line of JSON."),
) -> None:
    """Show keys, shapes, dtypes, sizes, ranges, token counts and classes of any data."""
    if ranges < 0:
        raise ValueError(f"--ranges {ranges}; allowed are 0 and more")
    found = _inspected(sources, sample, ranges, seed)
    if as_json:
        print_json(found)
        return
    show = {
        "dataset": _show_dataset,
        "sample": _show_sample,
        "raw": _show_raw,
        "raw sample": _show_raw_sample,
    }
    show[found["kind"]](found)


def _inspected(sources: list[str], sample: str | None, ranges: int, seed: int) -> dict[str, Any]:
    from wdsbench.view import inspect

    if not names_shards(sources):
        if sample is not None:
            return inspect.inspect_raw_sample(sources, sample)
        return inspect.inspect_raw(sources, progress=bar)
    from wdsbench.shards.read.open import open_index

    index = open_index(sources[0] if len(sources) == 1 else sources)
    if sample is not None:
        return inspect.inspect_sample(index, sample)
    return inspect.inspect_dataset(index, ", ".join(sources), range_samples=ranges, seed=seed)


def _show_dataset(found: dict[str, Any]) -> None:
    _say(
        f"{found['source']}: {found['samples']} samples of {found['questions']} questions,"
        f" {_size(found['bytes'])} in {len(found['shards'])} shards"
    )
    _print_table(
        "splits",
        ("split", "samples", "hallucinated", "right", "unlabelled"),
        [
            (name, *(entry[key] for key in ("samples", "hallucinated", "right", "unlabelled")))
            for name, entry in found["splits"].items()
        ],
    )
    _print_table(
        "fields",
        ("field", "dtype", "shape", "samples", "note"),
        [
            (name, entry["dtype"], _shape(entry["shape"]), entry["samples"], entry["note"])
            for name, entry in found["fields"].items()
        ],
    )
    _print_table(
        "members",
        ("member", "samples", "size", "share"),
        [
            (name, part["samples"], _size(part["bytes"]), f"{part['bytes'] / found['bytes']:.1%}")
            for name, part in found["members"].items()
        ],
    )
    _print_lengths(found)
    _print_layers(found["layers"], f"layers (ranges of {found['range_samples']} random samples)")
    shards = found["shards"]
    _print_table(
        "shards",
        ("shard", "samples", "size"),
        [(entry["name"], entry["samples"], _size(entry["bytes"])) for entry in shards[:_SHOWN]],
    )
    _say_rest(len(shards), "shards")
    for name, part in (("labels", found["labels"]), *sorted(found["provenance"].items())):
        if part is not None and name != "inputs":
            _say(f"  {name}: {part}")


def _show_sample(found: dict[str, Any]) -> None:
    _say(
        f"{found['key']}: question {found['question_id']}, trace {found['trace']}, of split"
        f" {found['split']}, in {found['shard']}"
    )
    _say_trace(found)
    _print_table(
        "members",
        ("member", "dtype", "shape", "size", "at byte"),
        [
            (
                part["name"],
                part["dtype"] or "json",
                _shape(part["shape"]),
                _size(part["bytes"]),
                part["offset_bytes"],
            )
            for part in found["members"]
        ],
    )
    _print_tokens(found)


def _show_raw(found: dict[str, Any]) -> None:
    _say(
        f"{found['source']}: {found['traces']} good traces of {found['questions']} questions,"
        f" {_size(found['bytes'])} in {len(found['files'])} files"
    )
    _print_table(
        "files",
        ("file", "format", "size", "traces", "bad", "problem"),
        [
            (
                part["path"],
                part["format"],
                _size(part["bytes"]),
                part["traces"],
                part["bad_traces"],
                part["problem"] or "",
            )
            for part in found["files"][:_SHOWN]
        ],
    )
    _say_rest(len(found["files"]), "files")
    _print_keys(found["keys"])
    _print_lengths(found)
    classes = ", ".join(f"{count} {name}" for name, count in sorted(found["classes"].items()))
    if classes:
        _say(f"labels in the files: {classes}")
    _print_layers(found["layers"], "layers")
    if found["first_problem"]:
        _say(f"first problem: {found['first_problem']}")
        _say("  note: `wdsbench verify` lists all")
    for remark, count in found["remarks"].items():
        _say(f"  note: {count} traces: {remark}")


def _show_raw_sample(found: dict[str, Any]) -> None:
    _say(f"{found['file']}, trace {found['position']}")
    _print_keys(found["keys"])
    if found["problem"]:
        _say(f"problem: {found['problem']}")
        return
    _say_trace(found)
    _print_layers(found["layers"], "layers")
    _print_tokens(found)
    for remark in found["remarks"]:
        _say(f"  note: {remark}")


def _say_trace(found: dict[str, Any]) -> None:
    names = {None: "unknown", 0.0: "right (0)", 1.0: "hallucinated (1)"}
    score = "" if found.get("score") is None else f", score {found['score']:g}"
    prompt = "unknown" if found["prompt_length"] is None else found["prompt_length"]
    _say(f"  label {names.get(found['label'], found['label'])}{score}")
    _say(f"  {found['tokens']} tokens, prompt {prompt}; answer: {found['answer']!r}")


def _print_keys(keys: dict[str, dict[str, Any]]) -> None:
    _print_table(
        "keys",
        ("key", "type", "shape", "dtype", "traces"),
        [
            (name, part["type"], _shape(part["shape"]), part["dtype"] or "", part["traces"])
            for name, part in keys.items()
        ],
    )


def _print_lengths(found: dict[str, Any]) -> None:
    rows = []
    for name in ("tokens", "prompt_tokens", "answer_tokens", "state_tokens"):
        part = found.get(name)
        # Of how many tokens there are states is worth a line where it is not of all.
        if part is not None and (name != "state_tokens" or part != found["tokens"]):
            numbers = (part["min"], f"{part['median']:g}", f"{part['mean']:.1f}", part["max"])
            rows.append((name.replace("_", " "), *numbers, part["total"]))
    _print_table("lengths", ("", "least", "median", "mean", "most", "all"), rows)
    if found["unknown_prompts"]:
        _say(f"  note: {found['unknown_prompts']} traces do not say how long their prompt is")


def _print_layers(layers: list[dict[str, Any]], title: str) -> None:
    names = [name for name in (layers[0] if layers else {}) if name != "layer"]
    _print_table(
        title,
        ("layer", *(name.replace("_", " ") for name in names)),
        [(row["layer"], *(_number(row.get(name)) for name in names)) for row in layers],
    )


def _print_tokens(found: dict[str, Any]) -> None:
    tokens = found["token_list"]
    _print_table(
        "tokens",
        ("token", "id", "text", "part", "log-probability"),
        [
            (
                part["place"],
                part["id"],
                "" if part["text"] is None else repr(part["text"]),
                part["part"] or "",
                _number(part["logprob"]),
            )
            for part in tokens
        ],
    )


def _print_table(title: str, names: Iterable[str], rows: list[Any]) -> None:
    if not rows:
        return
    stdout.print()
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(names):
        numbers = place and all(isinstance(row[place], int | float) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    stdout.print(table)


def _say_rest(count: int, what: str) -> None:
    if count > _SHOWN:
        _say(f"  and {count - _SHOWN} {what} more; --json lists all")


def _shape(shape: Any) -> str:
    if shape is None:
        return ""
    if isinstance(shape, str):
        return shape
    return f"[{', '.join('varies' if size is None else str(size) for size in shape)}]"


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _size(size: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"


def _say(line: str) -> None:
    stdout.print(line, highlight=False, soft_wrap=True, markup=False)
