"""What data is made of: against what was put into it."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import FEATURES, HEADS, LAYERS, Packed, make_dataset, make_raw, write_pickle

from wdsbench.pack import PackOptions
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_index
from wdsbench.traces.attention import AttentionRules, reduce_maps
from wdsbench.traces.reduced import reduced_to_raw
from wdsbench.view.inspect import (
    inspect_dataset,
    inspect_sample,
)
from wdsbench.view.inspect_raw import inspect_raw, inspect_raw_sample


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    options = PackOptions(attention=("edges", "heads", "sketch", "full"), threads=1)
    return make_dataset(tmp_path_factory.mktemp("data"), traces=20, options=options)


def lengths(packed: Packed) -> list[int]:
    return [len(raw["tokens"]) for raw in packed.raws.values()]


def test_a_data_set(packed: Packed) -> None:
    index = DatasetIndex.open(packed.folder)
    found = inspect_dataset(index, "shards", range_samples=99)
    assert json.loads(json.dumps(found)) == found
    assert (found["kind"], found["samples"], found["questions"]) == ("dataset", 20, 20)
    shards = {path.name: path.stat().st_size for path in packed.folder.glob("*.tar")}
    assert {entry["name"]: entry["bytes"] for entry in found["shards"]} == shards
    assert found["bytes"] == sum(shards.values())
    assert found["fields"]["hidden"]["shape"] == [LAYERS, None, FEATURES]
    assert found["fields"]["hidden"]["dtype"] == "<f2"
    assert found["members"]["hidden.npy"] == {
        "samples": 20,
        "bytes": sum(128 + 2 * LAYERS * FEATURES * count for count in lengths(packed)),
    }
    assert found["tokens"]["total"] == sum(lengths(packed))
    assert found["tokens"]["max"] == max(lengths(packed))
    prompts = [raw["prompt_length"] for raw in packed.raws.values()]
    assert found["prompt_tokens"]["mean"] == pytest.approx(np.mean(prompts))
    assert found["answer_tokens"]["total"] == sum(lengths(packed)) - sum(prompts)
    wrong = sum(score < 0.5 for score in packed.scores.values())
    assert sum(entry["hallucinated"] for entry in found["splits"].values()) == wrong
    assert found["labels"]["threshold"] == 0.5
    everything = np.concatenate([packed.hidden(question) for question in packed.raws], axis=1)
    assert found["range_samples"] == 20
    for number, row in enumerate(found["layers"]):
        states = everything[number]
        assert (row["layer"], row["nan"], row["infinite"]) == (number, 0, 0)
        assert (row["min"], row["max"]) == (states.min(), states.max())
        assert row["rms"] == pytest.approx(float(np.sqrt(np.square(states).mean())), rel=1e-5)
        assert row["max_abs"] == np.abs(states).max()


def test_ranges_are_optional_and_seeded(packed: Packed) -> None:
    index = DatasetIndex.open(packed.folder)
    found = inspect_dataset(index, "shards", range_samples=0)
    assert "min" not in found["layers"][0]
    assert found["layers"][0]["max_abs"] > 0
    first, again, other = (
        inspect_dataset(index, "s", range_samples=2, seed=seed)["layers"] for seed in (1, 1, 3)
    )
    assert first == again != other


def test_tars_without_an_index(packed: Packed, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(packed.folder, tmp_path / "bare"))
    (bare / "index.json").unlink()
    found = inspect_dataset(open_index(f"{bare}/*.tar"), "tars")
    assert found["samples"] == 20
    assert found["labels"] is None
    assert [row["layer"] for row in found["layers"]] == list(range(LAYERS))
    assert "max_abs" not in found["layers"][0]
    assert sum(entry["unlabelled"] for entry in found["splits"].values()) == 20


@pytest.mark.parametrize("by", ["key", "question"])
def test_a_sample(packed: Packed, by: str) -> None:
    index = DatasetIndex.open(packed.folder)
    question = index.question_id(7)
    raw = packed.raws[question]
    found = inspect_sample(index, index.key(7) if by == "key" else question)
    assert json.loads(json.dumps(found)) == found
    assert (found["key"], found["question_id"]) == (index.key(7), question)
    assert found["score"] == pytest.approx(packed.scores[question])
    assert found["label"] == float(packed.scores[question] < 0.5)
    count, prompt = len(raw["tokens"]), raw["prompt_length"]
    assert (found["tokens"], found["prompt_length"]) == (count, prompt)
    assert found["answer"] == "an answer"
    assert [row["id"] for row in found["token_list"]] == raw["tokens"]
    assert [row["text"] for row in found["token_list"]] == raw["tokens_decoded"]
    parts = [row["part"] for row in found["token_list"]]
    assert parts == ["prompt"] * prompt + ["answer"] * (count - prompt)
    logprobs = [row["logprob"] for row in found["token_list"]]
    assert logprobs[:prompt] == [None] * prompt
    np.testing.assert_array_equal(np.float32(logprobs[prompt:]), raw["token_logprobs"])
    members = {part["name"]: part for part in found["members"]}
    assert members["hidden.npy"]["shape"] == [LAYERS, count, FEATURES]
    assert members["sketch.npy"]["shape"] == [LAYERS, HEADS, count, 4]
    assert members["meta.json"]["shape"] is None
    assert found["provenance"]["file"] == "batch_0001.pkl"


def test_no_such_sample(packed: Packed) -> None:
    with pytest.raises(ValueError, match="neither a member key nor a question id"):
        inspect_sample(DatasetIndex.open(packed.folder), "nobody")
    with pytest.raises(ValueError, match="no trace has this question id"):
        inspect_raw_sample([packed.folder.parent / "traces_data"], "nobody")


def test_raw_files(packed: Packed) -> None:
    found = inspect_raw([packed.folder.parent / "traces_data"])
    assert json.loads(json.dumps(found)) == found
    assert (found["traces"], found["bad_traces"], found["questions"]) == (20, 0, 20)
    assert [(file["format"], file["traces"]) for file in found["files"]] == [("pickle", 10)] * 2
    low, high = min(lengths(packed)), max(lengths(packed))
    assert found["keys"]["hidden_states"] == {
        "type": "list of array",
        "shape": [LAYERS, f"{low}..{high}", FEATURES],
        "dtype": "float16",
        "traces": 20,
    }
    assert found["keys"]["question_id"]["type"] == "text"
    assert found["keys"]["tokens"]["type"] == "list of int"
    everything = np.concatenate([packed.hidden(question) for question in packed.raws], axis=1)
    assert [row["max"] for row in found["layers"]] == everything.max(axis=(1, 2)).tolist()
    assert found["classes"] == {"unlabelled": 20}


def test_odd_raw_traces_are_described_all_the_same(tmp_path: Path) -> None:
    nan: dict[str, Any] = make_raw("nan", seed=1, tokens=5)
    nan["hidden_states"][1][0, 0] = np.nan
    ragged = make_raw("ragged", seed=2, tokens=5)
    ragged["hidden_states"][2] = ragged["hidden_states"][2][:3]
    reduced = make_raw("reduced", seed=3, tokens=5, dtype=np.float32)
    kept = reduce_maps(
        reduced.pop("attentions"), AttentionRules(("edges", "sketch")), prompt_length=2
    )
    reduced["reduced_attention"] = reduced_to_raw(kept)
    tensors = {**make_raw("torch", seed=4, tokens=5), "label": 1, "mine": {"b": [1, 2]}}
    tensors["hidden_states"] = [torch.from_numpy(h) for h in tensors["hidden_states"]]
    write_pickle(tmp_path / "a.pkl", [nan, ragged, reduced, tensors, "text"])
    (tmp_path / "b.pkl").write_bytes(b"no pickle")
    found = inspect_raw([tmp_path])
    assert (found["traces"], found["bad_traces"]) == (2, 3)
    assert "holds NaN" in found["first_problem"]
    assert "not a readable pickle" in found["files"][1]["problem"]
    keys = found["keys"]
    assert keys["hidden_states"]["traces"] == 4
    assert keys["hidden_states"]["shape"] == "ragged"
    assert "list of array of several shapes" in keys["hidden_states"]["type"]
    assert keys["reduced_attention.sketch"]["shape"] == [LAYERS, HEADS, 5, 4]
    assert keys["reduced_attention.edge_rule"]["type"] == "text"
    assert keys["mine.b"]["shape"] == [2]
    assert found["classes"] == {"unlabelled": 1, "hallucinated": 1}
    sample = inspect_raw_sample([tmp_path / "a.pkl"], "nan")
    assert "layer 1, holds NaN" in sample["problem"]
    assert sample["keys"]["hidden_states"]["shape"] == [LAYERS, 5, FEATURES]
    sample = inspect_raw_sample([tmp_path / "a.pkl"], "torch")
    assert (sample["label"], sample["position"], sample["problem"]) == (1.0, 3, None)


def test_preprocessed_files(tmp_path: Path) -> None:
    states = torch.randn(4, LAYERS, FEATURES)
    content = {"sequences": states, "labels": [0, 1, 1, 0], "question_ids": list("abcd")}
    torch.save(content, tmp_path / "a.pt")
    found = inspect_raw([tmp_path])
    assert found["keys"]["sequences"]["shape"] == [4, LAYERS, FEATURES]
    assert found["classes"] == {"right": 2, "hallucinated": 2}
    assert found["tokens"] == {"min": 1, "median": 1.0, "mean": 1.0, "max": 1, "total": 4}
    sample = inspect_raw_sample([tmp_path], "c")
    assert (sample["label"], sample["position"], sample["token_list"]) == (1.0, 2, [])


def test_nothing_of_a_pickle_is_run(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "was-run",)

    (tmp_path / "a.pkl").write_bytes(pickle.dumps([Hostile()]))
    found = inspect_raw([tmp_path / "a.pkl"])
    assert "it was not run" in found["files"][0]["problem"]
    assert not (tmp_path / "was-run").exists()
