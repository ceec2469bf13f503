"""``wdsbench bench`` from the outside."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from wdsbench.bench.part import Settings
from wdsbench.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "stream", *words])
    code = ended.value.code
    return code if isinstance(code, int) else int(code is not None)


def test_the_last_line_is_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half a second a case is for figures that somebody reads.
    monkeypatch.setattr("wdsbench.bench.part.Settings", partial(Settings, least_seconds=0.0))
    files = ["--data", str(tmp_path / "d"), "--out", str(tmp_path / "o.json")]
    size = ["--cases", "cold", "--scale", "0.004", "--repeats", "1"]
    assert run(*files, *size, "--plot", str(tmp_path / "o.svg")) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads((tmp_path / "o.json").read_text())
    names = [case["name"] for case in printed["cases"]]
    assert names == [
        f"{part}/{case}" for part in ("cold-A", "cold-S") for case in ("dd", "ours-t2")
    ]
    assert printed["scenario"] == "stream"
    assert printed["settings"]["scale"] == 0.004
    assert printed["parts"]["cold-S"]["facts"]["shard_bytes"] > 0
    assert printed["ratios"]["cold-A/ours_over_dd"] > 0
    assert printed["ratios"]["cold-S/ours_over_dd"] > 0
    assert printed["machine"]["half_kernel"]
    assert "commit" in printed["machine"]
    assert (tmp_path / "o.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--cases", "A,Z"), "--cases 'A,Z': not a list of A, S"),
        (("--scale", "2"), "--scale is 2.0; must be above 0 and at most 1"),
        (("--repeats", "0"), "--repeats is 0; must be at least 1"),
        (("--plot", "stream.jpeg"), "stream.jpeg: the suffix is not one of .png, .svg"),
    ],
)
def test_wrong_options_are_said_before_anything_is_made(
    words: tuple[str, ...], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 1
    assert wrong in capsys.readouterr().err
