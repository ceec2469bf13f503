"""Pictures are whole PNG files that hold every edge, label and weight; their looks are for eyes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import make_raw, write_pickle
from matplotlib.figure import Figure
from matplotlib.text import Text
from pictures import draw_coarsely
from trials import FULL, FULL_ONLY
from view.samples import HOSTILE, LAYERS, mean_map, raw_trace, stored_trace

from wdsbench.records import TokenScores
from wdsbench.view import figure
from wdsbench.view.figure import draw_trace
from wdsbench.view.graph import curves, place_nodes, strongest
from wdsbench.view.look import ANSWER_COLOUR, label_step
from wdsbench.view.source import open_trace
from wdsbench.view.trace import PANELS, Selection, ViewedTrace, visible

PNG = b"\x89PNG\r\n\x1a\n"
EVERY_LAYER = list(range(LAYERS))


def make_scores(layers: int = 0) -> TokenScores:
    positions = np.arange(6, 12)
    values = np.linspace(0.1, 0.9, 6)
    return TokenScores(
        "lstm", positions, values, 0.5, np.arange(layers),
        np.outer(np.linspace(-0.2, 0.2, layers), values) if layers else None,
        "what the layer adds", True, "trained on last_answer",
    )  # fmt: skip


def drawn(trace: ViewedTrace, monkeypatch: pytest.MonkeyPatch, **arguments: object) -> Figure:
    """Return the figure instead of its file."""
    figures: list[Figure] = []
    monkeypatch.setattr(figure, "_save", lambda made, _: figures.append(made))
    settings = {"panels": PANELS, "layers": EVERY_LAYER, **arguments}
    draw_trace(Path("unused.png"), trace, Selection(**settings))  # type: ignore[arg-type]
    return figures[0]


def axes_titles(made: Figure) -> list[str]:
    return [axes.get_title() for part in made.subfigs for axes in part.axes]


@pytest.mark.parametrize(
    ("layers", "head"), [([0], 1), pytest.param(EVERY_LAYER, None, marks=FULL_ONLY)]
)
def test_picture_of_hostile_tokens(tmp_path: Path, layers: list[int], head: int | None) -> None:
    path = draw_trace(
        tmp_path / "new" / "view.png",
        raw_trace(tmp_path),
        Selection(PANELS, layers, head, make_scores(3)),
    )
    content = path.read_bytes()
    assert content.startswith(PNG)
    assert int.from_bytes(content[16:20]) >= 1200
    assert [file.name for file in path.parent.iterdir()] == ["view.png"]


@pytest.mark.trials
def test_same_trace_gives_the_same_file(tmp_path: Path) -> None:
    trace = raw_trace(tmp_path)
    panels = PANELS if FULL else ("graph",)
    files = [
        draw_trace(tmp_path / name, trace, Selection(panels, [2])).read_bytes()
        for name in ("a.png", "b.png")
    ]
    assert files[0] == files[1]


def test_every_token_edge_and_weight_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, raw = stored_trace(tmp_path, "full", tokens=8)
    made = drawn(trace, monkeypatch)
    _, graphs, maps, *_ = made.subfigs
    for layer in EVERY_LAYER:
        edges = trace.edges(layer)
        assert len(graphs.axes[layer].collections[0].get_paths()) == edges.weight.size
        texts = {text.get_text() for text in graphs.axes[layer].findobj(Text)}
        assert set(raw["tokens_decoded"]) <= texts
        image = maps.axes[layer].images[0].get_array()
        np.testing.assert_allclose(np.ma.filled(image, np.nan), mean_map(raw, layer), atol=1e-3)
    labels = [label.get_text() for label in maps.axes[0].get_xticklabels()]
    assert labels == raw["tokens_decoded"]


def test_hostile_labels_are_no_formulas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = drawn(raw_trace(tmp_path), monkeypatch, panels=("graph",), layers=[0])
    shown = {
        text.get_text(): text for text in made.findobj(Text) if text.get_text() in
        {visible(token, most=16) for token in HOSTILE}
    }  # fmt: skip
    assert len(shown) == len({visible(token, most=16) for token in HOSTILE})
    assert not any(text.get_parse_math() for text in shown.values())


def test_panels_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = raw_trace(tmp_path)
    figures = {
        panels: drawn(trace, monkeypatch, panels=panels, layers=[1])
        for panels in (("graph",), ("heatmap",), ("norms",), PANELS)
    }
    # Head, foot, and the panels; a map comes with the sketch.
    assert [len(made.subfigs) for made in figures.values()] == [3, 4, 3, 6]
    assert "layer 1" in axes_titles(figures["graph",])
    assert len(drawn(trace, monkeypatch, panels=("norms",), scores=make_scores()).subfigs) == 4


def test_what_is_not_kept_is_said_in_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, _ = stored_trace(tmp_path, "edges,sketch")
    made = drawn(trace, monkeypatch)
    assert "repack with --attention full" in made.subfigs[-1].texts[0].get_text()
    assert len(made.subfigs) == 6


def test_lookback_without_a_prompt_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = raw_trace(tmp_path, prompt_length=None, token_logprobs=None)
    made = drawn(trace, monkeypatch, panels=("heatmap",), layers=[0])
    texts = {text.get_text() for text in made.findobj(Text)}
    assert "needs the length\nof the prompt" in texts


@pytest.mark.trials
def test_norms_of_the_last_token_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_coarsely(monkeypatch)
    states = [np.ones((1, 4), np.float16)] * LAYERS
    trace = raw_trace(tmp_path, hidden_states=states)
    path = draw_trace(tmp_path / "view.png", trace, Selection(("norms",), [0]))
    assert path.read_bytes().startswith(PNG)


def test_norms_of_the_answer_stand_over_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = make_raw("q<1>", seed=1, tokens=len(HOSTILE))["hidden_states"]
    trace = raw_trace(tmp_path, hidden_states=[layer[6:] for layer in states], states_of="answer")
    (axes, _) = drawn(trace, monkeypatch, panels=("norms",)).subfigs[1].axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == [visible(token, most=14) for token in HOSTILE[6:]]
    assert {label.get_color() for label in axes.get_xticklabels()} == {ANSWER_COLOUR}
    wanted = np.linalg.norm(np.stack(states)[:, 6:].astype(np.float64), axis=-1)
    np.testing.assert_allclose(axes.images[0].get_array(), wanted, rtol=1e-6)
    assert not axes.lines  # no prompt to tell apart


@pytest.mark.parametrize("tokens", [12, 1])
def test_layers_have_their_numbers_in_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    states = make_raw("q<1>", seed=1, tokens=len(HOSTILE))["hidden_states"]
    kept = [layer[-tokens:] for layer in states]
    trace = raw_trace(
        tmp_path, layers=[0, 15, 31], hidden_states=kept, states_of="last" if tokens == 1 else "all"
    )
    made = drawn(trace, monkeypatch, layers=[1, 2], scores=make_scores(3))
    titles = axes_titles(made)
    assert titles.count("layer 15") == titles.count("layer 31") == 2  # graph and map
    assert "layer 1" not in titles
    ticks = [
        [label.get_text() for label in axes.get_yticklabels()]
        for part in made.subfigs
        for axes in part.axes
        if axes.get_ylabel() == "layer"
    ]
    # Norms and what each layer adds to the score; the norms of one token are a line.
    assert ticks == [["0", "15", "31"]] * (2 if tokens > 1 else 1)
    if tokens == 1:
        (norms,) = (axes for part in made.subfigs for axes in part.axes
                    if axes.get_xlabel() == "layer")  # fmt: skip
        assert norms.lines[0].get_xdata().tolist() == [0, 15, 31]
    texts = {text.get_text() for text in made.findobj(Text)}
    assert "layer 31" in texts


@pytest.mark.trials
@pytest.mark.parametrize("where", [np.s_[1, 3, 0], np.s_[:]])
def test_infinite_states_are_drawn_as_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: object
) -> None:
    draw_coarsely(monkeypatch)
    states = np.ones((LAYERS, len(HOSTILE), 4), np.float16)
    states[2] *= 100
    states[where] = np.inf  # type: ignore[index]
    trace = raw_trace(tmp_path, hidden_states=list(states))
    path = draw_trace(tmp_path / "view.png", trace, Selection(("norms",), [0]))
    assert path.read_bytes().startswith(PNG)


@pytest.mark.trials
def test_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_coarsely(monkeypatch)
    raw = make_raw("q", seed=0, tokens=1)
    for key in ("prompt_length", "token_logprobs"):
        del raw[key]
    trace, _ = open_trace(write_pickle(tmp_path / "a.pkl", [raw]))
    path = draw_trace(tmp_path / "view.png", trace, Selection(PANELS, EVERY_LAYER if FULL else [0]))
    assert path.read_bytes().startswith(PNG)


def test_nodes_of_prompt_and_answer_stand_apart() -> None:
    places = place_nodes(5, 3)
    assert places.x.tolist() == [0, 0, 0, 1, 1]
    assert places.y.tolist() == [0, 1, 2, 0.25, 1.75]
    assert places.rows == 3
    assert set(place_nodes(5, None).x) == {0}


def test_curves_begin_and_end_at_their_nodes() -> None:
    places = place_nodes(5, 3)
    index = np.array([[0, 0, 3, 2], [1, 2, 4, 3]])
    points = curves(places, index)
    for end, row in ((0, 0), (3, 1)):
        np.testing.assert_array_equal(points[:, end, 0], places.x[index[row]])
        np.testing.assert_array_equal(points[:, end, 1], places.y[index[row]])
    assert points[1, 1, 0] > points[0, 1, 0] > 0  # the wider the arc
    assert points[2, 1, 0] < 1  # towards the middle


def test_strongest() -> None:
    assert strongest(np.array([0.5, 0.1, 0.3], np.float16), 2).tolist() == [2, 0]


def test_label_step() -> None:
    assert label_step(10, 3.0, 7.0) == 1
    every = label_step(300, 2.5, 7.0)
    assert 300 / every * 7.0 <= 2.5 * 72
