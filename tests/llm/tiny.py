"""A random Llama, a random GPT-2 (a few thousand parameters) and a tokenizer of twelve words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from wdsbench.llm import extract as extraction
from wdsbench.llm.extract import ExtractReport
from wdsbench.llm.options import ExtractOptions
from wdsbench.llm.questions import Question
from wdsbench.llm.work import FileSink
from wdsbench.progress import Progress, no_progress

WORDS = ["red", "green", "blue", "one", "two", "three", "who", "what", "where", "is", "the", "?"]
VOCABULARY = {word: i for i, word in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *WORDS])}
LAYERS, HEADS, FEATURES = 3, 2, 16
#: A chat in the words that there are: ``what`` the system says, ``who`` the user is, ``three`` and
#: then the answer.
CHAT_TEMPLATE = (
    "{{ bos_token }} {% for message in messages %}"
    "{{ 'what' if message.role == 'system' else 'who' }} {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}three{% endif %}"
)


def make_tokenizer(**changes: Any) -> Any:
    tokenizer = Tokenizer(WordLevel(VOCABULARY, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", VOCABULARY["<bos>"])]
    )
    names: dict[str, Any] = {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "padding_side": "left",
        **changes,
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def make_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=FEATURES,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=48,
        initializer_range=0.5,  # far from uniform attention, so that a leak would show
        pad_token_id=VOCABULARY["<pad>"],
        bos_token_id=VOCABULARY["<bos>"],
        eos_token_id=VOCABULARY["<eos>"],
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval()


def make_poisoned(seed: int = 0) -> Any:
    """Return a Llama whose states are NaN from an unknown word, which it never answers."""
    model = make_model(seed)
    poison = VOCABULARY["<unk>"]
    model.model.embed_tokens.weight.data[poison] = float("nan")
    model.lm_head.register_forward_hook(
        lambda _module, _inputs, logits: logits.index_fill(-1, torch.tensor([poison]), -100.0)
    )
    return model


def make_gpt2(seed: int = 0) -> Any:
    """Return a GPT-2, with learned positions and one projection."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(VOCABULARY),
        n_embd=FEATURES,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=48,
        initializer_range=0.5,
        pad_token_id=VOCABULARY["<pad>"],
        bos_token_id=VOCABULARY["<bos>"],
        eos_token_id=VOCABULARY["<eos>"],
        attn_implementation="eager",
    )
    return GPT2LMHeadModel(config).eval()


MODELS = {"llama": make_model, "gpt2": make_gpt2}


def make_questions(count: int, seed: int = 0) -> list[Question]:
    """Return questions of 1 to 12 words."""
    random = torch.Generator().manual_seed(seed)
    questions = []
    for number in range(count):
        length = int(torch.randint(1, 13, (), generator=random))
        picks = torch.randint(0, len(WORDS), (length,), generator=random).tolist()
        text = " ".join(WORDS[pick] for pick in picks)
        questions.append(Question(f"q{number}", text, ("red", "the blue")))
    return questions


def extract(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    out: Path,
    *,
    sink: FileSink | None = None,
    progress: Progress = no_progress,
    journal: bool = False,
    max_new_tokens: int = 6,
    **options: Any,
) -> ExtractReport:
    """Extract with options by keyword, by default short answers and no journal."""
    chosen = ExtractOptions(journal=journal, max_new_tokens=max_new_tokens, **options)
    return extraction.extract(
        model, tokenizer, questions, out, chosen, sink=sink, progress=progress
    )
