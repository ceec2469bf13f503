"""A trace as one self-contained HTML file with sliders for layer, head and threshold.

The file contains Plotly's library (4.8 MB) and the arrays (payload.py), so it opens without a
network; its content security policy forbids requests. Tokens are untrusted text: they are JSON
without ``<`` in the page, text nodes in its document, and have ``<``, ``>``, ``&`` as entities in
Plotly, which parses some HTML.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

from wdsbench.files import write_whole
from wdsbench.view.payload import page_data
from wdsbench.view.trace import Selection, ViewedTrace, visible

#: Longer traces are not drawn by browsers in bearable time.
MOST_TOKENS = 1000

_HOME = Path(__file__).parent


def write_page(path: Path, trace: ViewedTrace, shown: Selection) -> Path:
    """Write the page and return ``path``; the selected head is where the slider starts.

    Raises:
        ValueError: More tokens than `MOST_TOKENS`.
    """
    from plotly.offline import get_plotlyjs

    if trace.num_tokens > MOST_TOKENS:
        raise ValueError(
            f"{trace.num_tokens} tokens; a page shows at most {MOST_TOKENS}: draw a picture"
            " (--out trace.png)"
        )
    data = page_data(trace, shown)
    # As JSON inside HTML: no tag can begin, and no entity is read in a script element.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    parts = {
        "title": html.escape(f"{visible(trace.name)} - wdsbench view"),
        "style": _read("page.css"),
        "script": _read("page.js"),
        "data": text.replace("<", "\\u003c"),
        "plotly": get_plotlyjs(),
    }
    page = _read("page.html")
    pieces = []
    for name in ("title", "style", "data", "plotly", "script"):
        before, _, page = page.partition(f"{{{name}}}")
        pieces += [before, parts[name]]
    write_whole(path, "".join([*pieces, page]).encode("utf-8", "replace"))
    return path


def _read(name: str) -> str:
    return (_HOME / name).read_text(encoding="utf-8").rstrip("\n")
