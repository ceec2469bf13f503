"""Architectures other than Llama: positions, masks, norms, shared keys, experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from llm.test_extract import assert_equals_lone_pass, read_all
from llm.tiny import FEATURES, HEADS, LAYERS, VOCABULARY, extract, make_questions, make_tokenizer
from trials import FULL_ONLY, trials

IDS = {"vocab_size": len(VOCABULARY), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "hidden_size": FEATURES,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
WIDE = {**SIZES, "intermediate_size": 32}
SHARED = {**WIDE, "num_key_value_heads": 1}

#: Name -> (class of its configuration, sizes).
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "sliding window": ("MistralConfig", {**SHARED, "sliding_window": 8}),
    "own head size": ("Qwen3Config", {**SHARED, "head_dim": 12}),
    "windows in turn, soft cap": (
        "Gemma2Config",
        {**SHARED, "head_dim": 8, "sliding_window": 8},
    ),
    "parallel blocks": ("GPTNeoXConfig", WIDE),
    "experts": ("MixtralConfig", {**SHARED, "num_local_experts": 2}),
    "positions with an offset": (
        "OPTConfig",
        {
            "hidden_size": FEATURES,
            "ffn_dim": 32,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "max_position_embeddings": 64,
            "init_std": 0.3,
            "word_embed_proj_dim": FEATURES,
        },
    ),
    "no positions but slopes": (
        "BloomConfig",
        {"hidden_size": FEATURES, "n_layer": LAYERS, "n_head": HEADS, "initializer_range": 0.3},
    ),
}


@pytest.mark.trials
@pytest.mark.parametrize("method", ["greedy", pytest.param("sample", marks=FULL_ONLY)])
@pytest.mark.parametrize("name", CONFIGS)
def test_batches_equal_lone_passes(name: str, method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind, sizes = CONFIGS[name]
    config = getattr(transformers, kind)(**IDS, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.train(False)
    for size in (4, 1):
        extract(
            model,
            make_tokenizer(),
            make_questions(trials(5, 9)),
            tmp_path / str(size),
            batch_size=size,
            max_new_tokens=trials(3, 8),
            decode=method,
            on_error="fail",
        )
    batched, alone = read_all(tmp_path / "4"), read_all(tmp_path / "1")
    assert [trace.tokens.tolist() for trace in batched] == [
        trace.tokens.tolist() for trace in alone
    ]
    for trace in batched:
        assert trace.hidden.shape[::2] == (LAYERS, FEATURES)
        assert_equals_lone_pass(trace, model)
