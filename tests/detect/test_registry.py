"""Names of detectors; listing them does not import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wdsbench.detect.probe import PROBE_TOKENS
from wdsbench.detect.registry import (
    CONTROLS,
    DETECTOR_NAMES,
    IMAGE_DETECTORS,
    TRACE_DETECTORS,
    DetectorShape,
    detector_spec,
)
from wdsbench.shards.format.kinds import KINDS


def test_every_entry_is_complete() -> None:
    assert DETECTOR_NAMES[:3] == ("length", "logprob_mean", "logprob_min")
    controls = ("charm_no_edges", "charm_shuffled_edges")
    assert TRACE_DETECTORS[-5:] == ("gnn", "gvae", "charm", *controls)
    assert (*TRACE_DETECTORS, *CONTROLS, "autoencoder", "pca") == DETECTOR_NAMES
    assert CONTROLS == ("text_control", "question_control", "similarity_control")
    assert DETECTOR_NAMES[-2:] == IMAGE_DETECTORS
    for name in DETECTOR_NAMES:
        spec = detector_spec(name)
        assert spec.name == name
        closed_form = spec.kind == "closed_form"
        assert (spec.score is not None) == closed_form
        assert (spec.build is None) == (spec.inputs is None) == closed_form
        if spec.reconstructs:
            assert spec.needs.kinds == ("image",)
        elif spec.build is not None:
            module = spec.build(DetectorShape(num_layers=2, num_features=4, hidden=3, num_heads=5))
            assert module.get_submodule("scale") is not None


def test_needs_are_the_loaders_arguments() -> None:
    assert detector_spec("lstm").needs.arguments() == {
        "fields": ("hidden",),
        "tokens": "last_answer",
        "layout": "stack",
    }
    assert detector_spec("gnn").needs.layout == "graph"
    assert detector_spec("gnn").needs.kinds == ("edges",)
    assert detector_spec("gvae").needs == detector_spec("gnn").needs
    for name in ("charm", "charm_no_edges", "charm_shuffled_edges"):
        assert detector_spec(name).needs.arguments() == {
            "fields": ("hidden",),
            "tokens": "all",
            "layout": "union-graph",
        }
        assert detector_spec(name).needs.kinds == ("heads",)
    assert KINDS["heads"].remedy.startswith("repack with --attention heads")
    assert detector_spec("length").needs.fields == ()
    names = [name for name in DETECTOR_NAMES if detector_spec(name).needs.one_token]
    assert names == ["probe_logistic", "probe_mlp", "lstm"]
    assert detector_spec("attention_logistic").needs.arguments() == {
        "fields": ("sketch",),
        "tokens": "last",
        "layout": "stack",
    }


def test_a_probes_token_decides_what_is_read() -> None:
    needs = detector_spec("probe_mlp").needs
    assert needs.at_token("last_answer") == needs
    asked = {token: needs.at_token(token) for token in PROBE_TOKENS[1:]}
    assert {token: one.tokens for token, one in asked.items()} == {
        "first_answer": "answer",
        "mean_answer": "answer",
        "last_prompt": "all",
    }
    assert {one.layout for one in asked.values()} == {"jagged"}
    choosing = [name for name in DETECTOR_NAMES if detector_spec(name).chooses_token]
    assert choosing == ["probe_logistic", "probe_mlp"]


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'lsmt' is not one of length, .*did you mean 'lstm'\?"):
        detector_spec("lsmt")


def test_listing_names_imports_no_torch() -> None:
    code = "import sys, wdsbench.detect.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
