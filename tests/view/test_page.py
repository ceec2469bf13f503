"""The contents of a page: the weights to the stated resolution, hostile tokens as text alone, and
as much as there is room for.
"""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from view.samples import HEADS, HOSTILE, LAYERS, mean_map, raw_trace, stored_trace
from view.test_figure import make_scores

from wdsbench.view import page
from wdsbench.view.page import NOT_KEPT, STEPS, page_data, quantised, write_page
from wdsbench.view.trace import PANELS, Selection, visible


class Elements(HTMLParser):
    """Counts the page's elements and keeps the data's text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.data = ""
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        named = dict(attrs)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        self._inside = named.get("id") == "data"

    def handle_endtag(self, _tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.data += data


@pytest.fixture
def no_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the library out, of which no test here is about."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "// {data}")


def parsed(path: Path) -> Elements:
    elements = Elements()
    elements.feed(path.read_text(encoding="utf-8"))
    return elements


def codes(text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(base64.b64decode(text), np.uint8)


def weights(text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    found = codes(text)
    return np.where(found == NOT_KEPT, np.nan, (found / STEPS) ** 2)


def test_quantised_is_as_exact_as_the_page_says() -> None:
    half = np.linspace(0, 1, 10_001, dtype=np.float32)
    error = np.abs((quantised(half) / STEPS) ** 2 - half)
    assert error.max() < 0.004
    assert error[half <= 0.01].max() < 0.0004
    ends = np.array([0, 1, 1.01, np.nan], np.float32)
    assert quantised(ends).tolist() == [0, STEPS, STEPS, NOT_KEPT]


def test_weights_on_the_page(tmp_path: Path) -> None:
    trace, raw = stored_trace(tmp_path, "full")
    data = page_data(trace, Selection(PANELS, [0, 2]))
    maps = data["maps"]
    assert (maps["meanLayers"], maps["headLayers"]) == ([0, 1, 2], [0, 1, 2])
    lower = np.tril_indices(trace.num_tokens)
    mean = weights(maps["mean"]).reshape(LAYERS, -1)
    heads = weights(maps["heads"]).reshape(LAYERS, HEADS, -1)
    for layer in range(LAYERS):
        np.testing.assert_allclose(mean[layer], mean_map(raw, layer)[lower], atol=0.005)
        for head in range(HEADS):
            wanted = np.asarray(raw["attentions"][layer][head], np.float32)[lower]
            np.testing.assert_allclose(heads[layer, head], wanted, atol=0.005)
    norms = np.frombuffer(base64.b64decode(data["norms"]["values"]), np.float32)
    np.testing.assert_array_equal(norms.reshape(LAYERS, -1), trace.norms)


def test_layers_and_tokens_on_the_page(tmp_path: Path) -> None:
    data = page_data(raw_trace(tmp_path), Selection(PANELS, [0]))
    assert data["layerNames"] == list(range(LAYERS))
    assert data["norms"]["tokens"] == list(range(len(HOSTILE)))
    states = np.ones((LAYERS, 6, 4), np.float16)
    trace = raw_trace(tmp_path, hidden_states=states, layers=[0, 15, 31], states_of="answer")
    data = page_data(trace, Selection(PANELS, [1]))
    assert data["layerNames"] == [0, 15, 31]
    assert data["norms"]["tokens"] == list(range(6, len(HOSTILE)))
    assert data["chosen"] == [1]


def test_sketch_on_the_page(tmp_path: Path) -> None:
    trace, _ = stored_trace(tmp_path, "edges,sketch")
    assert trace.sketch is not None
    sketch = page_data(trace, Selection(("heatmap",), [0]))["sketch"]
    found = codes(sketch["values"]).reshape(trace.sketch.shape)
    low, high = np.array(sketch["ranges"]).T
    values = np.where(found == NOT_KEPT, np.nan, low + found / STEPS * (high - low))
    assert (np.abs(values - trace.sketch) <= (high - low) / STEPS)[~np.isnan(values)].all()
    np.testing.assert_array_equal(np.isnan(values), np.isnan(trace.sketch))


@pytest.mark.usefixtures("no_plotly")
def test_hostile_tokens_stay_text(tmp_path: Path) -> None:
    trace = raw_trace(tmp_path)
    path = write_page(
        tmp_path / "new" / "a.html", trace, Selection(PANELS, [0, 2], scores=make_scores(3))
    )
    elements = parsed(path)
    assert elements.tags.count("script") == 3
    assert not {"img", "b", "link", "iframe"} & set(elements.tags)
    assert elements.links == []
    assert json.loads(elements.data)["texts"] == [visible(text) for text in HOSTILE]
    assert "<title>question q&lt;1&gt; - wdsbench view</title>" in path.read_text()


@pytest.mark.usefixtures("no_plotly")
def test_page_fetches_nothing_and_names_every_control(tmp_path: Path) -> None:
    text = write_page(tmp_path / "a.html", raw_trace(tmp_path), Selection(PANELS, [0])).read_text()
    assert "default-src 'none'" in text
    assert "{script}" not in text
    for control in re.findall(r'<(?:input|select)[^>]* id="(\w+)"', text):
        assert f'<label for="{control}">' in text
    assert not re.search(r"(?:https?:)?//[a-z]+\.[a-z]", text)


def test_library_is_inside(tmp_path: Path) -> None:
    path = write_page(tmp_path / "a.html", raw_trace(tmp_path), Selection(PANELS, [0]))
    assert "plotly.js v" in path.read_text()
    assert 4e6 < path.stat().st_size < 6e6


@pytest.mark.parametrize(
    ("maps", "mean_layers", "head_layers", "said"),
    [
        (9, [0, 1, 2], [0, 1, 2], ""),
        (5, [0, 1, 2], [1], "single heads are here for layers 1 alone"),
        (3, [0, 1, 2], [], "the mean over heads alone is here"),
        (1, [1], [], "only the mean over heads of layers 1 is here"),
    ],
)
def test_what_is_left_out_of_a_large_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    maps: int,
    mean_layers: list[int],
    head_layers: list[int],
    said: str,
) -> None:
    trace = raw_trace(tmp_path)
    size = trace.num_tokens * (trace.num_tokens + 1) // 2
    monkeypatch.setattr(page, "MAP_BYTES", maps * size)
    data = page_data(trace, Selection(PANELS, [1]))
    assert data["maps"]["meanLayers"] == mean_layers
    assert data["maps"]["headLayers"] == head_layers
    assert codes(data["maps"]["mean"]).size == len(mean_layers) * size
    assert codes(data["maps"]["heads"]).size == len(head_layers) * HEADS * size
    assert any(said in note for note in data["notes"])
    assert data["maps"]["numHeads"] == (HEADS if head_layers else 0)


def test_a_page_that_cannot_hold_one_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = raw_trace(tmp_path)
    monkeypatch.setattr(page, "MAP_BYTES", 10)
    with pytest.raises(ValueError, match="choose fewer --layers, or draw a picture"):
        page_data(trace, Selection(PANELS, [0]))
    monkeypatch.setattr(page, "MOST_TOKENS", 5)
    with pytest.raises(ValueError, match="12 tokens; a page shows at most 5: draw a picture"):
        write_page(tmp_path / "a.html", trace, Selection(PANELS, [0]))
    assert not (tmp_path / "a.html").exists()


def test_what_is_not_kept_is_said_on_the_page(tmp_path: Path) -> None:
    trace, _ = stored_trace(tmp_path, "edges,sketch")
    notes = "\n".join(page_data(trace, Selection(PANELS, [0]))["notes"])
    assert "repack with --attention full" in notes
    assert "repack with --attention heads" in notes


@pytest.mark.parametrize("attention", ["", "edges", "heads", "sketch"])
@pytest.mark.usefixtures("no_plotly")
def test_page_of_little(tmp_path: Path, attention: str) -> None:
    trace, _ = stored_trace(tmp_path, attention)
    path = write_page(tmp_path / "a.html", trace, Selection(PANELS, [0]))
    data = json.loads(parsed(path).data)
    assert (data["maps"] is None) == (attention in ("", "sketch"))
    assert (data["sketch"] is None) == (attention != "sketch")


def test_first_threshold_leaves_about_two_edges_a_token(tmp_path: Path) -> None:
    trace, _ = stored_trace(tmp_path, "full", tokens=40)
    data = page_data(trace, Selection(PANELS, [1]))
    least = (data["start"]["threshold"] / 100) ** 2
    lower = np.tril_indices(40, -1)
    edges = int((trace.square(1)[lower] >= least).sum())
    assert 80 <= edges <= 200


def test_infinite_norms_can_be_written(tmp_path: Path) -> None:
    states = np.ones((LAYERS, len(HOSTILE), 4), np.float16)
    states[0, 0] = np.inf
    data = page_data(raw_trace(tmp_path, hidden_states=list(states)), Selection(("norms",), [0]))
    json.dumps(data, allow_nan=False)
