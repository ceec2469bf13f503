"""Models load ready for extraction, or fail with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from llm.tiny import make_gpt2, make_model, make_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, T5Config
from trials import FULL

from wdsbench.errors import ModelError
from wdsbench.llm.model import load_model, model_fingerprint
from wdsbench.llm.options import ModelOptions


def save(folder: Path, **tokenizer_changes: object) -> Path:
    make_model().save_pretrained(folder)
    make_tokenizer(**tokenizer_changes).save_pretrained(folder)
    return folder


def test_load(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, padding_side="right")
    capfd.readouterr()
    model, tokenizer = load_model(tmp_path, ModelOptions(dtype="bfloat16"))
    assert capfd.readouterr() == ("", "")
    assert not model.training
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"
    assert (tokenizer.padding_side, tokenizer.pad_token) == ("left", "<pad>")


def test_pad_token_falls_back_to_the_end_of_sequence(tmp_path: Path) -> None:
    save(tmp_path, pad_token=None)
    assert load_model(tmp_path)[1].pad_token == "<eos>"


def test_no_token_to_pad_with(tmp_path: Path) -> None:
    save(tmp_path, pad_token=None, eos_token=None)
    with pytest.raises(ModelError, match="neither a pad nor an end-of-sequence token"):
        load_model(tmp_path)


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype is 'int8'; expected one of float32"):
        ModelOptions(dtype="int8")
    with pytest.raises(ValueError, match="device is 'gpu'"):
        load_model(tmp_path, ModelOptions(device="gpu"))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch finds no GPU"):
            load_model(tmp_path, ModelOptions(device="cuda:0"))


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such folder"):
        load_model(tmp_path / "missing")


@pytest.mark.parametrize("damage", ["model.safetensors", "tokenizer.json", "config.json"])
def test_damaged_folder(damage: str, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / damage).write_bytes(b"{")
    with pytest.raises(ModelError, match="cannot be loaded: ") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_weights_that_would_be_random(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Transformers fills missing weights with random numbers, here the output head."""
    save(tmp_path)
    make_model().model.save_pretrained(tmp_path)
    capfd.readouterr()
    with pytest.raises(ModelError, match=r"lacks weights for a causal .*: lm_head\.weight; they w"):
        load_model(tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.trials
def test_a_model_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not FULL:  # transformers imports all causal models to list them in its error
        only = {LlamaConfig: LlamaForCausalLM}
        monkeypatch.setattr(AutoModelForCausalLM, "_model_mapping", only)
    T5Config(vocab_size=16, d_model=8).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    words = r"cannot be loaded: it is not a causal language model \(configuration T5Config\)$"
    with pytest.raises(ModelError, match=words):
        load_model(tmp_path)


def test_code_beside_a_model_is_never_run(tmp_path: Path) -> None:
    save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.update(model_type="mine", auto_map={"AutoConfig": "mine.Config"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'sentinel')!r}, 'w')")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(tmp_path)
    assert not (tmp_path / "sentinel").exists()


def test_code_beside_a_model_runs_when_it_is_trusted(tmp_path: Path) -> None:
    """The refusal names the option."""
    save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.update(
        model_type="mine",
        auto_map={"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.MineForCausalLM"},
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class Mine(LlamaConfig):\n    model_type = 'mine'\n"
        "class MineForCausalLM(LlamaForCausalLM):\n    config_class = Mine\n"
    )
    with pytest.raises(ModelError, match=r"needs code of its own; .* trust_remote_code"):
        load_model(tmp_path)
    model, _ = load_model(tmp_path, ModelOptions(trust_remote_code=True))
    assert type(model).__name__ == "MineForCausalLM"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device_map": "auto"}, "device_map auto needs accelerate"),
        ({"load_in": "4bit"}, "load_in 4bit needs bitsandbytes and accelerate"),
    ],
)
def test_missing_packages_are_named(
    options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ModelError, match=f"{words}, not installed; pip install"):
        load_model(tmp_path, ModelOptions(**options))


def test_fingerprints_differ_where_models_do() -> None:
    same = {model_fingerprint(make_model()) for _ in range(2)}
    others = {
        model_fingerprint(model)
        for model in (make_model(seed=1), make_model().to(torch.bfloat16), make_gpt2())
    }
    assert len(same) == 1
    assert len(same | others) == 4
