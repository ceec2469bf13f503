"""``wdsbench inspect`` and ``view``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wdsbench.cli.terminal import (
    IMAGE_CLASSES,
    TRACE_CLASSES,
    bar,
    print_json,
    print_table,
    say,
    say_rest,
    size_text,
    stderr,
)
from wdsbench.jobs.verify import InspectJob, inspect
from wdsbench.jobs.view import ViewJob, view

#: Shards and files that are printed; --json lists all.
_SHOWN = 40


def inspect_command(options: InspectJob, as_json: bool) -> None:
    """Show keys, shapes, dtypes, sizes, ranges, token counts and classes of any data.

    Example: wdsbench inspect shards/ --sample g0042-1f2e3d4c5b6a7980
    """
    found = inspect(options, progress=bar)
    if as_json:
        print_json(found)
        return
    show = {
        "dataset": _show_dataset,
        "image dataset": _show_dataset,
        "images": _show_image_files,
        "sample": _show_sample,
        "raw": _show_raw,
        "raw sample": _show_raw_sample,
    }
    show[found["kind"]](found)


def _show_dataset(found: dict[str, Any]) -> None:
    shards, total = found["shards"], found["bytes"]
    of_images = found["kind"] == "image dataset"
    say(
        f"{found['source']}: {found['samples']} {'patches' if of_images else 'samples'} of"
        f" {found['questions']} {'images' if of_images else 'questions'}, {size_text(total)} in"
        f" {len(shards)} shards"
    )
    words = IMAGE_CLASSES if of_images else TRACE_CLASSES
    names = {"samples": "samples", words[0]: "hallucinated", words[1]: "right"}
    rows = [{"split": name, **part} for name, part in found["splits"].items()]
    _print_rows("splits", rows, {"split": "split", **names, "unlabelled": "unlabelled"})
    columns = ("dtype", "shape", "samples", "note")
    _print_parts("fields", "field", found["fields"], columns)
    print_table(
        "members",
        ("member", "samples", "size", "share"),
        [
            (name, part["samples"], size_text(part["bytes"]), f"{part['bytes'] / total:.1%}")
            for name, part in found["members"].items()
        ],
    )
    ranges = f"(ranges of {found['range_samples']} random samples)"
    if of_images:
        say(f"patches of {found['patch_size']} pixels, of {', '.join(found['dtypes'])} images")
        numbers = {name: name for name in ("channel", "min", "max", "constant")}
        _print_rows(f"channels {ranges}", found["channels"], numbers)
    else:
        _print_lengths(found)
        _print_layers(found["layers"], f"layers {ranges}")
    _print_rows("shards", shards[:_SHOWN], {"shard": "name", "samples": "samples", "size": "bytes"})
    say_rest(len(shards), _SHOWN, "shards")
    for name, part in (("labels", found["labels"]), *sorted(found["provenance"].items())):
        if part is not None and name != "inputs":
            say(f"  {name}: {part}")


def _show_sample(found: dict[str, Any]) -> None:
    say(
        f"{found['key']}: question {found['question_id']}, trace {found['trace']}, of split"
        f" {found['split']}, in {found['shard']}"
    )
    if found["image"] is None:
        _say_trace(found)
    else:
        _say_patch(found)
    members = [{**part, "dtype": part["dtype"] or "json"} for part in found["members"]]
    columns = {"member": "name", "dtype": "dtype", "shape": "shape", "size": "bytes"}
    _print_rows("members", members, {**columns, "at byte": "offset_bytes"})
    _print_tokens(found)


def _say_patch(found: dict[str, Any]) -> None:
    image, names = found["image"], {None: "unknown", 0.0: "normal (0)", 1.0: "anomalous (1)"}
    say(f"  label {names.get(found['label'], found['label'])}")
    for name in ("dtype", "height", "width", "window", "channels", "range", "geo"):
        if name in image:
            say(f"  {name}: {image[name]}")


def _show_image_files(found: dict[str, Any]) -> None:
    files = found["files"]
    say(f"{found['source']}: {len(files)} images")
    names = ("image", "dtype", "height", "width", "channels", "alpha", "problem")
    columns = {name: name for name in names} | {"size": "bytes"}
    _print_rows("images", files[:_SHOWN], columns)
    say_rest(len(files), _SHOWN, "images")


def _show_raw(found: dict[str, Any]) -> None:
    say(
        f"{found['source']}: {found['traces']} good traces of {found['questions']} questions,"
        f" {size_text(found['bytes'])} in {len(found['files'])} files"
    )
    columns = {"file": "path", "format": "format", "size": "bytes", "traces": "traces"}
    columns |= {"bad": "bad_traces", "problem": "problem"}
    _print_rows("files", found["files"][:_SHOWN], columns)
    say_rest(len(found["files"]), _SHOWN, "files")
    _print_parts("keys", "key", found["keys"], ("type", "shape", "dtype", "traces"))
    _print_lengths(found)
    classes = ", ".join(f"{count} {name}" for name, count in sorted(found["classes"].items()))
    if classes:
        say(f"labels in the files: {classes}")
    _print_layers(found["layers"], "layers")
    if found["first_problem"]:
        say(f"first problem: {found['first_problem']}")
        say("  note: `wdsbench verify` lists all")
    for remark, count in found["remarks"].items():
        say(f"  note: {count} traces: {remark}")


def _show_raw_sample(found: dict[str, Any]) -> None:
    say(f"{found['file']}, trace {found['position']}")
    _print_parts("keys", "key", found["keys"], ("type", "shape", "dtype", "traces"))
    if found["problem"]:
        say(f"problem: {found['problem']}")
        return
    _say_trace(found)
    _print_layers(found["layers"], "layers")
    _print_tokens(found)
    for remark in found["remarks"]:
        say(f"  note: {remark}")


def _say_trace(found: dict[str, Any]) -> None:
    names = {None: "unknown", 0.0: "right (0)", 1.0: "hallucinated (1)"}
    score = "" if found.get("score") is None else f", score {found['score']:g}"
    prompt = "unknown" if found["prompt_length"] is None else found["prompt_length"]
    say(f"  label {names.get(found['label'], found['label'])}{score}")
    say(f"  {found['tokens']} tokens, prompt {prompt}; answer: {found['answer']!r}")


def _print_parts(
    title: str, first: str, parts: dict[str, dict[str, Any]], names: Sequence[str]
) -> None:
    """Print a table of named parts: the name in column ``first``, then values of ``names``."""
    rows = [{first: name, **part} for name, part in parts.items()]
    _print_rows(title, rows, {name: name for name in (first, *names)})


def _print_rows(title: str, rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> None:
    """Print a table; ``columns`` gives the key of each column's values."""
    cells = [[_cell(key, row[key]) for key in columns.values()] for row in rows]
    print_table(title, list(columns), cells)


def _cell(key: str, value: Any) -> Any:
    if value is None:
        return ""
    formats: dict[str, Callable[[Any], str]] = {
        "shape": _shape,
        "bytes": size_text,
        "text": repr,
        "logprob": _number,
    }
    return formats[key](value) if key in formats else value


def _print_lengths(found: dict[str, Any]) -> None:
    rows = []
    for name in ("tokens", "prompt_tokens", "answer_tokens", "state_tokens"):
        part = found.get(name)
        # The number of tokens with states is printed if some tokens have none.
        if part is not None and (name != "state_tokens" or part != found["tokens"]):
            numbers = (part["min"], f"{part['median']:g}", f"{part['mean']:.1f}", part["max"])
            rows.append((name.replace("_", " "), *numbers, part["total"]))
    print_table("lengths", ("", "least", "median", "mean", "most", "all"), rows)
    if found["unknown_prompts"]:
        say(f"  note: {found['unknown_prompts']} traces do not state the length of their prompt")


def _print_layers(layers: list[dict[str, Any]], title: str) -> None:
    names = [name for name in (layers[0] if layers else {}) if name != "layer"]
    print_table(
        title,
        ("layer", *(name.replace("_", " ") for name in names)),
        [(row["layer"], *(_number(row.get(name)) for name in names)) for row in layers],
    )


def _print_tokens(found: dict[str, Any]) -> None:
    columns = {"token": "place", "id": "id", "text": "text", "part": "part"}
    _print_rows("tokens", found["token_list"], {**columns, "log-probability": "logprob"})


def _shape(shape: Any) -> str:
    if isinstance(shape, str):
        return shape
    return f"[{', '.join('varies' if size is None else str(size) for size in shape)}]"


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def view_command(options: ViewJob, as_json: bool) -> None:
    """Draw one trace: attention graph and map, norms of the states, a detector's scores; or patches
    of images, with a detector's reconstructions and errors.

    Example: wdsbench view shards/ --question hamahor-captain --layers 0,3,5 --out page.html
    """
    drawn = view(options)
    size = drawn.path.stat().st_size
    if as_json:
        print_json(
            {
                "out": str(drawn.path),
                "trace": drawn.trace,
                "layers": drawn.layers,
                "panels": drawn.panels,
                "bytes": size,
                "notes": drawn.notes,
            }
        )
        return
    say(f"{drawn.trace}: {drawn.description}")
    for note in drawn.notes:
        say(f"  note: {note}", stderr)
    say(f"  {drawn.path} ({size / 1e6:.1f} MB)", stderr)
