"""What extraction reduced packs to the bytes that its maps would have packed to, or is refused."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_raw, write_pickle, write_scores
from llm.tiny import MODELS, extract, make_questions, make_tokenizer
from trials import FULL_ONLY, trials

from wdsbench.cli.main import main
from wdsbench.errors import TraceError
from wdsbench.pack import PackOptions, PackReport, pack
from wdsbench.traces.attention import AttentionRules, reduce_maps
from wdsbench.traces.reduced import reduced_to_raw

REDUCED = ("edges", "heads", "sketch")
#: Rules of edges and thresholds of heads.
TOP, THRESHOLD = ("top:0.35", 0.05), ("threshold:0.15", 0.3)


def members_of(folder: Path) -> dict[str, bytes]:
    """Return every member of every shard by shard and name, in their order."""
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                found[f"{path.name}/{member.name}"] = file.read()
    return found


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        ("llama", THRESHOLD),
        pytest.param("gpt2", TOP, marks=FULL_ONLY),
        pytest.param("gpt2", THRESHOLD, marks=FULL_ONLY),
        pytest.param("llama", TOP, marks=FULL_ONLY),
    ],
)
@pytest.mark.trials
def test_the_same_bytes_as_from_the_maps(
    kind: str, rules: tuple[str, float], tmp_path: Path
) -> None:
    count = trials(8, 25)
    questions = make_questions(count)
    scores = write_scores(tmp_path / "s.csv", {q.question_id: 1.0 for q in questions})
    rule, threshold = rules
    sizes = []
    for name, kept in (("maps", ("full",)), ("reduced", REDUCED)):
        extract(
            MODELS[kind](),
            make_tokenizer(),
            questions,
            tmp_path / name / "traces",
            batch_size=4,
            max_new_tokens=trials(5, 8),
            attention=kept,
            edge_rule=rule,
            head_threshold=threshold,
        )
        (path,) = (tmp_path / name / "traces").iterdir()
        report = pack(
            [str(path)],
            tmp_path / name / "shards",
            scores=scores,
            options=PackOptions(attention=REDUCED, edge_rule=rule, head_threshold=threshold),
        )
        assert (report.samples, report.without_attention) == (count, 0)
        sizes.append(path.stat().st_size)
    maps, reduced = (members_of(tmp_path / name / "shards") for name in ("maps", "reduced"))
    assert list(maps) == list(reduced)
    kinds = {name.partition(".")[2].partition(".")[2] for name in maps}
    assert kinds >= {"edges_index.npy", "heads_ptr.npy", "heads_weight.npy", "sketch.npy"}
    assert "attention.npy" not in kinds
    for name, data in maps.items():
        assert reduced[name] == data, name
    shards, index = (
        {path.name: path.read_bytes() for path in (tmp_path / "maps" / "shards").glob(pattern)}
        for pattern in ("*.tar", "index.json")
    )
    for name, data in (shards | index).items():
        assert (tmp_path / "reduced" / "shards" / name).read_bytes() == data, name


def reduced_raws(
    count: int = 3, kinds: tuple[str, ...] = REDUCED, *, maps: bool = False
) -> list[dict[str, Any]]:
    """Return raw traces reduced by ``top:0.2`` and 0.3, neither of which is the default."""
    raws = []
    for number in range(count):
        raw = make_raw(f"q{number}", seed=number)
        rules = AttentionRules(kinds, "top:0.2", 0.3)
        reduced = reduce_maps(raw["attentions"], rules, prompt_length=raw["prompt_length"])
        raw["reduced_attention"] = reduced_to_raw(reduced)
        if not maps:
            del raw["attentions"]
        raws.append(raw)
    return raws


def pack_list(folder: Path, raws: list[dict[str, Any]], **options: Any) -> PackReport:
    write_pickle(folder / "t.pkl", raws)
    scores = write_scores(folder / "s.csv", {raw["question_id"]: 1.0 for raw in raws})
    packing = PackOptions(**options)
    return pack([str(folder / "t.pkl")], folder / "shards", scores=scores, options=packing)


@pytest.mark.parametrize("attention", [REDUCED, ("full", "sketch")])
def test_maps_win(attention: tuple[str, ...], tmp_path: Path) -> None:
    """Other rules than the trace was reduced by are then no hindrance."""
    both = reduced_raws(maps=True)
    alone = [{key: raw[key] for key in raw if key != "reduced_attention"} for raw in both]
    pack_list(tmp_path / "both", both, attention=attention)
    pack_list(tmp_path / "maps", alone, attention=attention)
    assert members_of(tmp_path / "both" / "shards") == members_of(tmp_path / "maps" / "shards")


def test_wide_indices_are_packed_narrow(tmp_path: Path) -> None:
    """As another writer may have left them."""
    narrow, wide = reduced_raws(), reduced_raws()
    for raw in wide:
        for name in ("edges_index", "heads_index"):
            raw["reduced_attention"][name] = raw["reduced_attention"][name].astype(np.uint32)
    for name, raws in (("a", narrow), ("b", wide)):
        options = {"attention": REDUCED, "edge_rule": "top:0.2", "head_threshold": 0.3}
        pack_list(tmp_path / name, raws, **options)
    assert members_of(tmp_path / "a" / "shards") == members_of(tmp_path / "b" / "shards")


# (kinds extracted, options of packing, words of the error, options of the remedy)
REFUSED: list[tuple[tuple[str, ...], dict[str, Any], str, dict[str, Any]]] = [
    (
        REDUCED,
        {"attention": ("edges",)},
        "its edges were extracted with --edge-rule top:0.2, not top:0.35, and it has no maps to"
        " compute them again; pack with --edge-rule top:0.2",
        {"edge_rule": "top:0.20"},
    ),
    (
        REDUCED,
        {"attention": ("heads", "sketch")},
        "its heads were extracted with --head-threshold 0.3, not 0.05, and it has no maps to"
        " compute them again; pack with --head-threshold 0.3",
        {"head_threshold": 0.3},
    ),
    (
        ("edges",),
        {"attention": ("edges", "sketch"), "edge_rule": "top:0.2"},
        "the trace was extracted with --attention edges and has no maps, so sketch cannot be made;"
        " pack with --attention edges, or extract with --attention edges,sketch",
        {"attention": ("edges",)},
    ),
    (
        ("heads", "sketch"),
        {"attention": ("sketch", "full", "edges"), "edge_rule": "top:0.2"},
        "the trace was extracted with --attention heads,sketch and has no maps, so full, edges"
        " cannot be made; pack with --attention heads,sketch, or extract with --attention"
        " full,edges,sketch",
        {"attention": ("heads", "sketch"), "head_threshold": 0.3},
    ),
]


@pytest.mark.parametrize(("kinds", "options", "words", "remedy"), REFUSED)
def test_what_is_not_as_asked_is_refused_and_the_remedy_works(
    kinds: tuple[str, ...],
    options: dict[str, Any],
    words: str,
    remedy: dict[str, Any],
    tmp_path: Path,
) -> None:
    raws = reduced_raws(kinds=kinds)
    with pytest.raises(TraceError, match=re.escape(words)) as caught:
        pack_list(tmp_path, raws, **options)
    assert (caught.value.position, caught.value.question_id) == (0, "q0")
    assert not (tmp_path / "shards").exists()
    report = pack_list(tmp_path, raws, **{**options, **remedy})
    assert (report.samples, report.without_attention) == (3, 0)


def test_what_is_not_wanted_is_left(tmp_path: Path) -> None:
    """Kinds that are not requested are left out, under any rule."""
    pack_list(tmp_path, reduced_raws(), attention=("sketch",))
    names = members_of(tmp_path / "shards")
    assert {name.split(".", 2)[2] for name in names} == {"hidden.npy", "meta.json", "sketch.npy"}
    report = pack_list(tmp_path / "none", reduced_raws(), attention=())
    assert (report.samples, report.without_attention) == (3, 0)


def test_traces_of_other_heads_are_refused(tmp_path: Path) -> None:
    raws = reduced_raws(2)
    raw = make_raw("q1", seed=1)
    maps = [layer[:1] for layer in raw.pop("attentions")]
    rules = AttentionRules(REDUCED, "top:0.2", 0.3)
    raws[1] = {
        **raw,
        "reduced_attention": reduced_to_raw(reduce_maps(maps, rules, prompt_length=1)),
    }
    options = {"edge_rule": "top:0.2", "head_threshold": 0.3}
    with pytest.raises(TraceError, match=r"trace 1, .*layers of 1 heads; .*which had 2"):
        pack_list(tmp_path, raws, attention=REDUCED, **options)
    assert pack_list(tmp_path, raws, attention=("edges",), **options).samples == 2


def test_maps_and_reduced_traces_make_one_data_set(tmp_path: Path) -> None:
    mixed = [reduced_raws(maps=True)[0], *reduced_raws()[1:]]
    del mixed[0]["reduced_attention"]
    options = {"attention": REDUCED, "edge_rule": "top:0.2", "head_threshold": 0.3}
    report = pack_list(tmp_path / "mixed", mixed, **options)
    assert {name: report.index.fields[name].samples for name in REDUCED} == dict.fromkeys(
        REDUCED, 3
    )
    pack_list(tmp_path / "reduced", reduced_raws(), **options)
    assert members_of(tmp_path / "mixed" / "shards") == members_of(tmp_path / "reduced" / "shards")


def test_traces_without_attention_are_named_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raws = [*reduced_raws(1), make_raw("q1", seed=1)]
    del raws[1]["attentions"]
    write_pickle(tmp_path / "t.pkl", raws)
    words = ["pack", "--traces", str(tmp_path / "t.pkl"), "--out", str(tmp_path / "shards")]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--missing-score", "keep", "--edge-rule", "top:0.2"])
    assert not ended.value.code
    said = " ".join(capsys.readouterr().out.split())
    assert "note: 1 traces have no attention, so graph detectors are not available" in said
    assert "extract with --attention edges,heads,sketch or full" in said
