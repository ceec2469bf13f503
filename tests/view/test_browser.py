"""The page in a real browser: it opens without a word on the console, asks the network for
nothing, and every slider changes the picture.

Driven through ``chromedriver`` (Debian: ``chromium``, ``chromium-driver``), with the network off.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_raw, write_pickle
from trials import FULL_ONLY, full_only
from view.samples import HEADS, HOSTILE, LAYERS, raw_trace, stored_trace
from view.test_figure import make_scores

import wdsbench.view.page
from wdsbench.view.page import write_page
from wdsbench.view.source import open_trace
from wdsbench.view.trace import PANELS, Selection, visible

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WAIT_SECONDS = 60


class Page:
    """An open page, and what a reader does with it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        """Open a page and wait until it has drawn."""
        self.driver.get(path.as_uri())
        self.wait(1)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def press(self, slider: str, key: str, times: int = 1) -> None:
        """Move a slider by its keys, as a reader would, and wait for the drawing."""
        for _ in range(times):
            before = self.draws
            self.driver.find_element("id", slider).send_keys(key)
            self.wait(before + 1)

    @property
    def draws(self) -> int:
        """How often everything was drawn."""
        return int(self.run("return document.body.dataset.draws || 0"))

    def picture(self, element: str) -> str:
        """Return a hash of what a reader sees of an element, the sliders above it apart."""
        bar = "document.getElementById('controls').style.visibility"
        self.run(f"{bar} = 'hidden'")
        pixels = self.driver.find_element("id", element).screenshot_as_png
        self.run(f"{bar} = ''")
        return hashlib.sha256(pixels).hexdigest()

    def shown(self, element: str) -> bool:
        """Return whether an element is visible."""
        return bool(self.driver.find_element("id", element).is_displayed())

    def console(self) -> list[str]:
        """Return everything on the console since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> set[str]:
        """Return the schemes of everything that was asked for since the last time."""
        logged = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        urls = [
            entry["params"]["request"]["url"]
            for entry in logged
            if entry["method"] == "Network.requestWillBeSent"
        ]
        return {url.partition(":")[0] for url in urls}

    def wait(self, draws: int) -> None:
        """Wait until everything was drawn so often."""
        end = time.monotonic() + WAIT_SECONDS
        while self.draws < draws:
            assert time.monotonic() < end, f"not drawn in {WAIT_SECONDS} s: {self.console()}"
            time.sleep(0.02)


def missing() -> str | None:
    """Return what a browser test lacks here; None where nothing."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    if not any(shutil.which(name) for name in BROWSERS):
        return f"none of {', '.join(BROWSERS)} is installed"
    return None if shutil.which("chromedriver") else "chromedriver is not installed"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    reason = missing()
    if reason and os.environ.get("WDSBENCH_REQUIRE_BROWSER") == "1":
        pytest.fail(f"WDSBENCH_REQUIRE_BROWSER=1, but {reason}")
    if reason:
        pytest.skip(reason)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
    flags = ["--headless=new", "--disable-dev-shm-usage", "--window-size=1300,1000"]
    if os.geteuid() == 0:  # Chromium's sandbox does not start for root
        flags.append("--no-sandbox")
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as driver:
        driver.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield Page(driver)


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """A browser whose console stays empty for the whole test."""
    browser.console()
    yield browser
    assert browser.console() == []


def test_sliders_change_the_picture(page: Page, tmp_path: Path) -> None:
    trace, _ = stored_trace(tmp_path, "full,edges,heads,sketch", tokens=10)
    page.requests()
    scores = make_scores(LAYERS)
    page.open(write_page(tmp_path / "a.html", trace, Selection(PANELS, [0, 1, 2], scores=scores)))
    assert page.requests() <= {"file", "data", "blob"}
    for section in ("graph", "map", "side", "sketch", "norms", "scores", "by-layer"):
        assert page.shown(section)
    seen = ("graph", "map", "sketch", "norms", "side")

    def pictures() -> dict[str, str]:
        return {name: page.picture(name) for name in seen}

    assert page.run("return document.getElementById('layer-value').textContent") == "1 of 0 to 2"
    drawn = [pictures()]
    for slider, key, panels in (
        ("layer", "\ue014", {"graph", "map", "sketch", "norms"}),  # arrow right
        ("head", "\ue014", {"graph", "map", "sketch", "side"}),
        ("threshold", "\ue00e", {"graph", "side"}),  # page up, ten steps
    ):
        page.press(slider, key)
        drawn.append(pictures())
        before, after = drawn[-2:]
        assert {name for name in seen if before[name] != after[name]} == panels


def test_what_is_drawn_are_the_weights(page: Page, tmp_path: Path) -> None:
    trace, _ = stored_trace(tmp_path, "full", tokens=9)
    panels = ("graph", "heatmap")
    page.open(write_page(tmp_path / "a.html", trace, Selection(panels, [0])))
    for layer in range(LAYERS):
        page.press("head", "\ue011") if layer else None  # home
        for head in (None, *range(HEADS)):
            drawn = page.run("return document.getElementById('map').data[0].z")
            found = np.array(drawn, dtype=np.float64) ** 2
            np.testing.assert_allclose(found, trace.square(layer, head), atol=0.005)
            if head != HEADS - 1:
                page.press("head", "\ue014")
        if layer < LAYERS - 1:
            page.press("layer", "\ue014")
    hover = page.run("return document.getElementById('map').data[0].text[8][3]")
    assert hover.startswith("t8 (8) to t3 (3): ")
    assert float(hover.rpartition(" ")[2]) == pytest.approx(found[8, 3], rel=0.06)
    least = float(page.run("return document.getElementById('threshold-value').textContent"))
    told = page.run("return document.getElementById('graph-told').textContent")
    lower = np.tril_indices(9, -1)
    wanted = (trace.square(LAYERS - 1, HEADS - 1)[lower] >= least).sum()
    assert abs(int(told.split()[0]) - int(wanted)) <= 1  # weights come in steps


def test_hostile_tokens_do_nothing_and_layers_have_their_numbers(
    page: Page, tmp_path: Path
) -> None:
    """Of a trace with the states of its answer, in some layers of the model."""
    states = np.ones((LAYERS, 6, 4), np.float16)
    trace = raw_trace(tmp_path, hidden_states=states, layers=[0, 15, 31], states_of="answer")
    page.open(write_page(tmp_path / "a.html", trace, Selection(PANELS, [0, 1])))
    assert page.run("return window.hacked === undefined")
    shown = page.run(
        "return [...document.querySelectorAll('#tokens span')].map((span) => span.textContent)"
    )
    assert shown == [visible(token) for token in HOSTILE]
    labels = page.run(
        "return [...document.querySelectorAll('#graph text')].map((text) => text.textContent)"
    )
    # A picture draws a space as a no-break space.
    labels = [label.replace("\xa0", " ") for label in labels]
    assert labels == [visible(token, most=16) for token in HOSTILE]
    assert page.run("return document.querySelectorAll('#graph img, #map img').length") == 0
    norms = "document.getElementById('norms')"
    assert page.run(f"return {norms}.data[0].z.map((row) => row.length)") == [6] * LAYERS
    assert page.run(f"return {norms}.layout.yaxis.ticktext") == ["0", "15", "31"]
    told = page.run(f"return {norms}.data[0].text[1][0]")
    assert told.startswith("layer 15, ")
    assert " (6): " in told  # the first token of the answer
    assert (
        page.run("return document.getElementById('layer-value').textContent") == "15 of 0, 15, 31"
    )
    assert "layer 15, " in page.run("return document.getElementById('graph-title').textContent")
    titles = page.run("return [...document.querySelectorAll('#side h3')].map((h) => h.textContent)")
    assert titles == ["layer 0", "layer 15"]


@full_only
def test_panels_keep_to_the_window(page: Page, tmp_path: Path) -> None:
    trace, _ = stored_trace(tmp_path, "full", tokens=40)
    page.open(write_page(tmp_path / "a.html", trace, Selection(PANELS, [0, 1, 2])))
    panels = ("graph", "map", "side-0", "sketch", "norms")
    for width in (700, 1300):
        draws = page.draws
        page.driver.set_window_size(width, 1000)
        page.wait(draws + 1)
        page.press("head", "\ue014")
        boxes = [page.driver.find_element("id", name).rect for name in panels]
        inside = (
            "const page = document.documentElement; return page.scrollWidth <= page.clientWidth"
        )
        assert page.run(inside)
        assert all(box["height"] > 150 for box in boxes)
        plots = page.run(
            "return [...document.querySelectorAll('.js-plotly-plot')].map((plot) =>"
            " plot.offsetWidth - plot.querySelector('.main-svg').getBoundingClientRect().width)"
        )
        assert all(abs(difference) <= 16 for difference in plots)


#: Edges of a graph's picture and of its labels, from left to right.
LABELS = """
    const plot = document.getElementById(arguments[0]);
    const edges = (element) => element.getBoundingClientRect();
    const texts = [...plot.querySelectorAll("text")];
    return [edges(plot.querySelector(".main-svg")).left,
      Math.min(...texts.map((text) => edges(text).left)),
      Math.max(...texts.map((text) => edges(text).right)),
      edges(plot.querySelector(".main-svg")).right,
      texts.map((text) => text.textContent)];
"""


@full_only
@pytest.mark.parametrize("layers", [3, 5])
def test_labels_are_not_cut_off(page: Page, tmp_path: Path, layers: int) -> None:
    """Ordinary ones are whole, the widest that there can be end in an ellipsis."""
    raw = make_raw("q", seed=1, tokens=8, layers=layers)
    raw["tokens_decoded"] = ["<|begin:bos>", "Who", "W" * 20, "is", "it", "<|eot|>", "m" * 20, "."]
    trace, _ = open_trace(write_pickle(tmp_path / "a.pkl", [raw]))
    page.driver.set_window_size(1300, 1000)
    page.open(write_page(tmp_path / "a.html", trace, Selection(PANELS, range(layers))))
    for width in (1300, 700, 420):
        page.driver.set_window_size(width, 1000)
        page.press("head", "\ue014" if width != 420 else "\ue012")
        for name in ("graph", *(f"side-{layer}" for layer in range(layers))):
            left, first, last, right, labels = page.run(LABELS, name)
            assert left <= first < last <= right, (width, name)
            assert labels[0] == "<|begin:bos>"
            assert labels[2].startswith("WWWW")
            assert labels[2].endswith("…")
    page.driver.set_window_size(1300, 1000)


@full_only
def test_a_layer_that_is_not_on_the_page(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = raw_trace(tmp_path)
    size = trace.num_tokens * (trace.num_tokens + 1) // 2
    monkeypatch.setattr(wdsbench.view.page, "MAP_BYTES", 5 * size)
    page.open(write_page(tmp_path / "a.html", trace, Selection(PANELS, [1])))
    page.press("head", "\ue014")
    assert not page.shown("remark")
    page.press("layer", "\ue014")
    assert page.shown("remark")
    said = page.run("return document.getElementById('remark').textContent")
    assert "single heads for layers 1." in said


@pytest.mark.parametrize(
    "attention", [*(pytest.param(kind, marks=FULL_ONLY) for kind in ("", "edges")), "sketch"]
)
def test_pages_of_little(page: Page, tmp_path: Path, attention: str) -> None:
    trace, _ = stored_trace(tmp_path, attention)
    page.open(write_page(tmp_path / "a.html", trace, Selection(PANELS, [0, 1])))
    assert page.shown("graph-section") == (attention == "edges")
    assert page.shown("sketch-section") == (attention == "sketch")
    assert page.shown("norms-section")
    assert not page.driver.find_element("id", "head").is_enabled()
    page.press("layer", "\ue014")


@full_only
def test_states_of_the_last_token_alone(page: Page, tmp_path: Path) -> None:
    states = [np.full((1, 4), 10.0**layer, np.float16) for layer in range(LAYERS)]
    trace = raw_trace(tmp_path, hidden_states=states, prompt_length=None, token_logprobs=None)
    page.open(write_page(tmp_path / "a.html", trace, Selection(PANELS, [0])))
    assert page.run("return document.getElementById('norms').data[0].z.length") == LAYERS
