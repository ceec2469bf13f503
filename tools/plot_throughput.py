"""Draw the README's picture of throughput: ``python tools/plot_throughput.py RESULT.json PNG``.

RESULT.json is what ``wdsbench bench stream --out`` wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BARS = {
    "ours-t2": "wdsbench.TraceLoader",
    "expert": "15 lines by hand, one raw file",
    "memcpy": "memcpy, one thread",
    "pt-iterable": ".pt files, DataLoader",
    "webdataset-tuned": "webdataset, tuned by hand",
    "webdataset": "webdataset, as documented",
}
OURS, OTHERS = "#0072B2", "#B0B0B0"  # Okabe and Ito (2008)


def main(result: str, picture: str) -> None:
    """Draw case A as horizontal bars."""
    cases = {case["name"]: case["gbps"] for case in json.loads(Path(result).read_text())["cases"]}
    values = [cases[f"A/{name}"] for name in BARS]
    figure = Figure(figsize=(7.2, 2.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = [OURS if name.startswith("ours") else OTHERS for name in BARS]
    axes.bar_label(
        axes.barh(list(BARS.values()), values, color=colours),
        [f"{v:.1f}" for v in values],
        padding=3,
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.08 * max(values))
    axes.set_xlabel("float32 GB/s of shuffled batches [32, 32, 4096], 2 cores of an AMD EPYC")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
