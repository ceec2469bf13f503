"""``pack --images``, ``inspect``, ``verify`` and ``unpack`` of images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
from cli.runner import run
from image_files import random_pixels, write_tiff
from PIL import Image

P = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with images in ``in`` and a data set of their tiles in ``shards``."""
    home = tmp_path_factory.mktemp("images")
    for number in range(8):
        name = f"{'normal' if number % 2 else 'crack'}/{number}.tif"
        write_tiff(home / "in" / name, random_pixels(40, 50, seed=number))
    words = ("--images", home / "in", "--out", home / "shards", "--patch-size", P, "--tile")
    assert run("pack", *words) == 0
    return home


def test_pack(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = folder / "in"
    pattern = f"{images}/*/*.tif"
    assert run("pack", "--images", pattern, "--out", tmp_path / "a", "--patch-size", P) == 0
    out = capsys.readouterr().out
    assert out.startswith("8 patches of 8 images, ")
    assert " anomalous, " in out
    assert "hallucinated" not in out
    words = ("--channels", "2,0", "--range", "channel", "--json", "--tile", "--stride", 10)
    words += ("--images", images, "--out", tmp_path / "b", "--patch-size", P)
    assert run("pack", *words) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["images"], report["samples"], report["left_out"]) == (8, 8 * 4 * 5, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--images in", "--patch-size is None; must be at least 1"),
        ("--images in --patch-size 0", "--patch-size is 0"),
        ("--images in --patch-size 8 --traces t.pkl", "--traces or --images, and not both"),
        ("--patch-size 8", "--traces or --images, and not both"),
        ("--images in --patch-size 8 --attention full", "--attention is an option of --traces"),
        ("--images in --patch-size 8 --append", "--append is an option of --traces"),
        ("--images in --patch-size 8 --resume", "--resume is an option of --traces"),
        ("--traces t.pkl --tile", "--tile is an option of --images; leave it out with --traces"),
        ("--traces t.pkl --range channel", "--range is an option of --images"),
        ("--images in --patch-size 8 --tile --resize", "--tile and --resize: choose one"),
        ("--images in --patch-size 8 --stride 4", "--stride needs --tile"),
        ("--images in --patch-size 8 --tile --stride 9", "--stride is 9; must be from 1 to"),
        (
            "--images in --patch-size 8 --range pixel",
            "--range 'pixel' is not one of image",
        ),
        ("--images in --patch-size 8 --on-error skip", "--on-error 'skip' is not one of"),
        ("--images in --patch-size 8 --channels 1,1", "--channels is (1, 1); expected different"),
        ("--images in --patch-size 8 --channels=-1", "--channels is (-1,); expected different"),
        ("--images in --patch-size 8 --workers 0", "workers is 0; must be at least 1"),
        ("--images nowhere --patch-size 8", "no image in 'nowhere'"),
    ],
)
def test_options_that_contradict(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("pack", *words.split(), "--out", tmp_path / "out") == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert not (tmp_path / "out").exists()


def test_bad_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiff(tmp_path / "in" / "a.tif", random_pixels())
    Image.fromarray(random_pixels()).convert("P").save(tmp_path / "in" / "b.png")
    words = ("--images", tmp_path / "in", "--out", tmp_path / "out", "--patch-size", P)
    assert run("pack", *words) == 1
    assert f"error: file {tmp_path}/in/b.png: has a palette;" in capsys.readouterr().err
    assert run("pack", *words, "--on-error", "record") == 0
    assert "note: 1 images were left out; see failures.jsonl" in capsys.readouterr().out
    assert run("inspect", tmp_path / "in", "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [(file["image"], file["dtype"], file["channels"]) for file in files] == [
        ("a.tif", "uint8", 3),
        ("b.png", None, None),
    ]
    assert "palette" in files[1]["problem"]
    assert run("inspect", tmp_path / "in") == 0
    assert run("inspect", tmp_path / "in" / "*.tif") == 0
    assert "2 images" in capsys.readouterr().out


def test_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", folder / "shards") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{folder / 'shards'}: 96 patches of 8 images, ")
    assert "anomalous" in out
    assert "patches of 16 pixels, of uint8 images" in out
    assert "'mode': 'tile'" in out
    assert run("inspect", folder / "shards", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["patch_size"], found["dtypes"]) == ("image dataset", P, ["uint8"])
    assert found["channels"][2] == {"channel": 2, "min": 0, "max": 255, "constant": 0}
    assert run("inspect", folder / "shards", "--sample", "normal/1.tif") == 0
    out = capsys.readouterr().out
    assert "label normal (0)" in out
    assert "window: [0, 0, 16, 16]" in out
    assert "image_range.npy" in out


def test_tars_without_an_index(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tars = sorted((folder / "shards").glob("*.tar"))
    assert run("inspect", *tars, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["samples"], found["questions"]) == ("image dataset", 96, 8)
    assert run("verify", *tars) == 0


def test_verify_repair_unpack(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", folder / "shards") == 0
    assert run("verify", folder / "shards", "--repair", "--out", tmp_path / "again") == 0
    assert run("unpack", tmp_path / "again", "--out", tmp_path / "back") == 0
    assert "96 patches in 8 files" in capsys.readouterr().out
    for path in (folder / "in").rglob("*.tif"):
        back = tmp_path / "back" / path.relative_to(folder / "in")
        np.testing.assert_array_equal(tifffile.imread(back), tifffile.imread(path))
    (train,) = (tmp_path / "again").glob("train-000000.tar")
    data = bytearray(train.read_bytes())
    data[1000:1010] = bytes(10)
    train.write_bytes(data)
    assert run("verify", tmp_path / "again") == 1
    assert run("unpack", tmp_path / "again", "--out", tmp_path / "other") == 1
    assert not list((tmp_path / "other").iterdir())
