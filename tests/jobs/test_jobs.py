"""The jobs as Python functions: their names, options and reports."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import typer
from builders import make_dataset

from wdsbench import jobs
from wdsbench.cli.main import app
from wdsbench.jobs.verify import Verified


def test_each_command_is_a_job_with_the_same_options() -> None:
    group: Any = typer.main.get_command(app)
    for name in set(group.commands) - {"bench", "demo"}:
        assert callable(getattr(jobs, name))
        options = getattr(jobs, f"{name.capitalize()}Job")
        fields = {field.name for field in dataclasses.fields(options)}
        asked = {parameter.name for parameter in group.commands[name].params}
        assert asked - {"as_json"} <= fields


def test_pack_unpack_relabel_verify_and_inspect(tmp_path: Path) -> None:
    data = make_dataset(tmp_path / "data", traces=12).folder.parent
    traces = (str(data / "traces_data" / "*"),)
    job = jobs.PackJob(traces=traces, scores=data / "scores.csv", out=tmp_path / "shards")
    report = jobs.pack(job)
    assert report.samples == 12
    checked = jobs.verify(jobs.VerifyJob(sources=(str(job.out),)))
    assert isinstance(checked, Verified)
    assert checked.sound
    found = jobs.inspect(jobs.InspectJob(sources=(str(job.out),)))
    assert (found["kind"], found["samples"]) == ("dataset", 12)
    labels = jobs.relabel(jobs.RelabelJob(shards=job.out, scores=data / "scores.csv"))
    assert labels.changed == 0
    back = jobs.unpack(jobs.UnpackJob(data=job.out, out=tmp_path / "back"))
    assert back.samples == 12
    again = jobs.PackJob(traces=(str(tmp_path / "back" / "*.npz"),), out=tmp_path / "again")
    assert jobs.pack(again).samples == 12
