"""GGUF files as models: the weights and the tokenizer that were written, or one line of error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli.runner import run
from llm.tiny import FEATURES, HEADS, LAYERS, make_model

from wdsbench.errors import ModelError
from wdsbench.llm.model import load_model
from wdsbench.traces.read import read_traces

#: Bytes "a" to "j", a blank (as byte-level tokenizers write it) and a merged token.
TOKENS = ["<pad>", "<bos>", "<eos>", "<unk>", *"abcdefghij", "\u0120", "ab"]
NORMAL, CONTROL = 1, 3
#: Names of the tensors, in transformers and in GGUF.
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers": "blk",
}


def write_gguf(path: Path, model: Any, architecture: str = "llama") -> Path:
    gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
    writer = gguf.GGUFWriter(path, architecture)
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(FEATURES)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([CONTROL if token.startswith("<") else NORMAL for token in TOKENS])
    writer.add_token_merges(["a b"])
    for name in ("pad", "bos", "eos"):
        getattr(writer, f"add_{name}_token_id")(TOKENS.index(f"<{name}>"))
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:  # llama.cpp rotates neighbouring features
            values = values.reshape(HEADS, 2, -1, FEATURES).swapaxes(1, 2).reshape(values.shape)
        for own, other in NAMES.items():
            name = name.replace(own, other)
        writer.add_tensor(name, values.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_model_of_a_file_is_the_model_that_was_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", make_model())
    capfd.readouterr()
    model, tokenizer = load_model(path)
    assert capfd.readouterr() == ("", "")
    assert (model.config._attn_implementation, model.dtype) == ("eager", torch.float32)
    assert (tokenizer.padding_side, tokenizer.pad_token) == ("left", "<pad>")
    ids = tokenizer("ab ca")["input_ids"]
    assert [TOKENS[token] for token in ids] == ["ab", "\u0120", "c", "a"]
    tokens = torch.tensor([ids])
    with torch.inference_mode():
        found, wanted = (each(tokens, output_hidden_states=True) for each in (model, make_model()))
    assert torch.allclose(found.logits, wanted.logits, atol=1e-5)
    assert torch.allclose(found.hidden_states[-1], wanted.hidden_states[-1], atol=1e-5)


def test_extract_and_plan_read_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", make_model())
    (tmp_path / "q.csv").write_text("question_id,question,reference\na,ab ab,a\nb,cde,b\n")
    words = ("--model", path, "--questions", tmp_path / "q.csv", "--max-new-tokens", "3")
    assert run("plan", *words, "--attention", "none") == 0
    assert "2 traces of 3 layers, 2 heads, 16 features" in (shown := capsys.readouterr().out)
    assert "in a probe of 2" in shown
    out = tmp_path / "out"
    assert run("extract", *words, "--attention", "none", "--out", out) == 0
    (first, _) = read_traces(out / "batch_0001.pkl.gz")
    assert first.token_texts[: first.prompt_length] == ["ab", " ", "ab"]


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write_gguf(tmp_path / "other.gguf", make_model(), "mystery")
    with pytest.raises(ModelError, match=r"reads no GGUF file of the architecture mystery; give"):
        load_model(other)
    damaged = tmp_path / "damaged.gguf"
    for content in (b"rubbish", other.read_bytes()[:200]):
        damaged.write_bytes(content)
        with pytest.raises(ModelError, match=r"damaged\.gguf cannot be loaded: ") as caught:
            load_model(damaged)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match=r"missing\.gguf: there is no such file"):
        load_model(tmp_path / "missing.gguf")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gguf" else name)
    words = r"other\.gguf needs gguf, not installed; pip install wdsbench\[gguf\]\.$"
    with pytest.raises(ModelError, match=words):
        load_model(other)
