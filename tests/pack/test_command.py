"""``wdsbench pack`` with --workers, --append and --resume, and what it holds in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_raw, write_pickle
from scripts import run_code
from trials import full_only

from wdsbench.cli.main import main


def run(*words: object) -> int:
    """Run the command in this process and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["pack", *map(str, words)])
    code = ended.value.code
    return code if isinstance(code, int) else int(code is not None)


def labelled(first: int, count: int = 12) -> list[dict[str, Any]]:
    return [{**make_raw(f"q{i}", seed=i), "label": i % 2} for i in range(first, first + count)]


def test_workers_append_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pickle(tmp_path / "a.pkl", labelled(0))
    write_pickle(tmp_path / "b.pkl", labelled(12))
    out = tmp_path / "out"
    assert run("--traces", tmp_path / "?.pkl", "--out", out, "--workers", 2, "--resume") == 0
    capsys.readouterr()
    write_pickle(tmp_path / "more.pkl", labelled(24))
    more = ("--traces", tmp_path / "more.pkl", "--out", out)
    assert run(*more) == 1
    assert "or add to it with --append" in capsys.readouterr().err
    assert run(*more, "--append", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["samples"] == 12
    assert sum(entry["samples"] for entry in report["splits"].values()) == 36
    assert run(*more, "--append", "--workers", 0) == 1
    assert "workers is 0; must be at least 1" in capsys.readouterr().err


PEAK = """
import os, resource, sys
from pathlib import Path
from wdsbench.pack import PackOptions, pack
folder, workers = Path(sys.argv[1]), int(sys.argv[2])
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pack([str(folder / "t")], folder / f"out{workers}", options=PackOptions(attention=()),
     workers=workers)
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
print(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@full_only
def test_memory_is_bounded_by_the_files_under_way(tmp_path: Path) -> None:
    """Six files of 24 MB: one process holds about one of them, and a worker too."""
    for number in range(6):
        raws = []
        for i in range(6):
            states = np.random.default_rng([number, i]).normal(size=(8, 64, 4096))
            raws.append(
                {
                    "hidden_states": list(states.astype(np.float16)),
                    "tokens": list(range(64)),
                    "question_id": f"q{number}-{i}",
                    "label": i % 2,
                }
            )
        write_pickle(tmp_path / "t" / f"b{number}.pkl", raws)
    file_kb = (tmp_path / "t" / "b0.pkl").stat().st_size / 1024
    own, _ = map(int, run_code(PEAK, tmp_path, 1).stdout.split())
    assert own < 2.2 * file_kb  # the file, a trace or two of it, and what the allocator cannot use
    script = tmp_path / "script.py"
    script.write_text("if __name__ == '__main__':\n" + PEAK.replace("\n", "\n    "))
    _, child = map(
        int,
        run_code(
            f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, {str(script)!r},"
            f" {str(tmp_path)!r}, '2']))"
        ).stdout.split(),
    )
    plain = int(
        run_code(
            "import wdsbench.pack.workers, resource;"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        ).stdout
    )
    # Resident pages of a worker's buffers, which the parent shares, are counted here too.
    assert child - plain < 4 * file_kb
