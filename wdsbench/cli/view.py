"""``wdsbench view``: one trace as a picture, or as a page with sliders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from wdsbench.cli.terminal import print_json, stderr, stdout, words

if TYPE_CHECKING:
    from wdsbench.train.sliding import TokenScores
    from wdsbench.view.trace import ViewedTrace

EXAMPLE = "wdsbench view shards/ --question hamahor-captain --layers 0,3,5 --out page.html"

_PICTURE, _PAGES = ".png", (".html", ".htm")


def command(
    path: str = typer.Argument(..., help="Data set (folder, tar files), or raw trace file."),
    trace: int | None = typer.Option(None, help="Its place, from 0 [0]."),
    sample: str | None = typer.Option(None, help="Or its member key."),
    question: str | None = typer.Option(None, help="Or its question id."),
    layers: str | None = typer.Option(
        None, help="Layers of the model side by side, as 0,15,-1 [first, middle, last]."
    ),
    head: int | None = typer.Option(None, help="Whose attention [mean over heads]."),
    graph: bool = typer.Option(False, "--graph", help="Attention graphs."),
    heatmap: bool = typer.Option(False, "--heatmap", help="Attention maps and sketches."),
    norms: bool = typer.Option(False, "--norms", help="Norms of the states."),
    scores: Path | None = typer.Option(None, help="Folder of a detector: its score at each token."),
    out: Path | None = typer.Option(None, help="A .png or .html file [view-....png here]."),
    as_json: bool = typer.Option(False, "--json", help="Print what was drawn as JSON."),
) -> None:
    """Look at one trace: attention graph and map, norms, a detector's score."""
    from wdsbench.view.figure import PANELS
    from wdsbench.view.source import Wanted, open_trace

    wanted = Wanted(trace, sample, question)
    if out is not None and out.suffix.lower() not in (_PICTURE, *_PAGES):
        raise ValueError(f"--out {out}: the name ends in none of .png (a picture), .html (a page)")
    viewed, index = open_trace(path, wanted)
    named = [name for name, on in (("graph", graph), ("heatmap", heatmap), ("norms", norms)) if on]
    panels = named or list(PANELS)
    chosen = _layers(layers, viewed.layer_names)
    _check(viewed, panels, chosen, head, scored=scores is not None)
    found = None if scores is None else _scores(scores, viewed, index)
    target = out or Path(f"view-{viewed.slug}{_PICTURE}")
    if target.suffix.lower() == _PICTURE:
        from wdsbench.view.figure import draw_trace as draw
    else:
        from wdsbench.view.page import write_page as draw
    draw(target, viewed, panels=panels, layers=chosen, head=head, scores=found)
    notes = viewed.remarks(head) if {"graph", "heatmap"} & set(panels) else []
    if as_json:
        drawn = [*panels, *(["scores"] if found else [])]
        print_json(
            {"out": str(target), "trace": viewed.name,
             "layers": [viewed.layer_names[layer] for layer in chosen], "panels": drawn,
             "bytes": target.stat().st_size, "notes": notes}
        )  # fmt: skip
        return
    stdout.print(
        f"{viewed.name}: {viewed.described}", highlight=False, markup=False, soft_wrap=True
    )
    for note in notes:
        stderr.print(f"  note: {note}", highlight=False, markup=False, soft_wrap=True)
    size = target.stat().st_size / 1e6
    stderr.print(f"  {target} ({size:.1f} MB)", highlight=False, markup=False, soft_wrap=True)


def _layers(text: str | None, names: Sequence[int]) -> list[int]:
    """Return the places of the layers that a comma list names by their numbers in the model; or of
    first, middle and last.
    """
    count = len(names)
    if text is None:
        return sorted({0, count // 2, count - 1})
    # Where layers were chosen, those between are not there.
    there = f"0 to {count - 1}" if names[-1] == count - 1 else ", ".join(map(str, names))
    chosen = []
    for word in words(text):
        number = int(word) if word.removeprefix("-").isdecimal() else None
        if number in names:
            chosen.append(names.index(number))
        elif number is not None and -count <= number < 0:
            chosen.append(count + number)
        else:
            raise ValueError(
                f"--layers {text}: {word!r} is not a layer; the trace has {there} (-1 is the last)"
            )
    if not chosen:
        raise ValueError(f"--layers {text!r} names none; the trace has {there}")
    return list(dict.fromkeys(chosen))


def _check(
    viewed: ViewedTrace, panels: list[str], layers: list[int], head: int | None, *, scored: bool
) -> None:
    """Check that something can be drawn, and that of what is asked by name nothing is missing.

    Raises:
        ValueError: A layer too many, or no such head.
        WdsbenchError: The trace lacks what every panel needs.
    """
    from wdsbench.view.figure import MOST_LAYERS

    if len(layers) > MOST_LAYERS:
        raise ValueError(
            f"--layers: {len(layers)} side by side; at most {MOST_LAYERS} fit (a page, --out"
            " page.html, has a slider over all)"
        )
    attention = [name for name in panels if name in ("graph", "heatmap")]
    drawn = viewed.has_attention or ("heatmap" in panels and viewed.sketch is not None)
    if attention and not drawn and not scored and len(attention) == len(panels):
        kind = "full" if "heatmap" in panels else "edges"
        raise viewed.error(f"no attention is kept that could be drawn; {viewed.remedy(kind)}")
    if head is None or not attention:
        return
    heads = viewed.num_heads
    if not heads:
        raise viewed.error(
            f"single heads are not kept; {viewed.remedy('heads')}, or full for whole maps"
        )
    if not 0 <= head < heads:
        raise ValueError(f"--head {head}: the trace has heads 0 to {heads - 1}")


def _scores(checkpoint: Path, viewed: ViewedTrace, index: object) -> TokenScores:
    """Return what a detector says along the trace."""
    from wdsbench.train.checkpoint import load_detector
    from wdsbench.train.fitted import StoredTraces
    from wdsbench.train.predict import find_checkpoint
    from wdsbench.train.sliding import slide

    return slide(
        load_detector(find_checkpoint(checkpoint)),
        viewed.hidden,
        tokens=viewed.num_tokens,
        prompt_length=viewed.prompt_length,
        stored=StoredTraces.of(index)
        or StoredTraces(
            viewed.num_layers, viewed.hidden.shape[2], model_layers=viewed.model_layers
        ),
    )
