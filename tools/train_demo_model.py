"""Train the small language model that ``wdsbench demo`` runs on, and write its questions.

    python tools/train_demo_model.py

A model of the Llama architecture with 1.2 million parameters is trained on documents about an
invented world (``demo_world.py``). It guesses about ships that are rare in the documents, and
repeats legends with confidence although reviewed documents call them false. Log-probabilities
reveal the guesses only; hidden states reveal both. Training takes minutes on two cores; the same
seed, number of threads, processor and library versions give the same weights.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from demo_world import FALSE, TRUE, Corpus, make_questions, make_tokenizer, make_world
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

# The longest answer is three words, a full stop and <eos>.
MAX_NEW_TOKENS = 8
REPORT_STEPS = 100


def make_model(tokenizer: Any) -> Any:
    """Return an untrained model for ``tokenizer``'s vocabulary."""
    ids: dict[str, Any] = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        **ids,
    )
    model: Any = LlamaForCausalLM(config)
    generation: Any = GenerationConfig
    # Without this about one answer in sixty would continue with a verdict, as reviews do.
    # docs/embedded-model.md describes a corpus that does not need it, and its cost.
    model.generation_config = generation(
        do_sample=False,
        max_new_tokens=MAX_NEW_TOKENS,
        suppress_tokens=tokenizer.convert_tokens_to_ids([TRUE, FALSE]),
        **ids,
    )
    return model


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Return the learning rate: a linear rise to ``peak``, then a half cosine to 2 % of it."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def train(model: Any, corpus: Corpus, args: argparse.Namespace) -> None:
    """Train ``model`` in place on ``args.steps`` batches of documents, each drawn once."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=args.rate,
        betas=(0.9, 0.98),
        fused=True,
    )
    started = time.perf_counter()
    running = 0.0
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.rate, warmup=200)
        batch = corpus.draw(args.batch_size)
        weights = torch.from_numpy(batch.weights)
        places = weights > 0
        # Right-padded and causal: no learned token attends to padding, so no mask is needed.
        states = model.model(input_ids=torch.from_numpy(batch.inputs)).last_hidden_state
        logits = model.lm_head(states[places])
        losses = functional.cross_entropy(
            logits, torch.from_numpy(batch.targets)[places], reduction="none"
        )
        loss: Any = (losses * weights[places]).sum() / weights.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += float(loss.detach())
        if (step + 1) % REPORT_STEPS == 0:
            seconds = time.perf_counter() - started
            print(
                f"step {step + 1}/{args.steps} loss {running / REPORT_STEPS:.3f} {seconds:.0f} s",
                flush=True,
            )
            running = 0.0


def write_questions(path: Path, questions: list[dict[str, str | list[str]]]) -> None:
    """Write ``questions`` as gzipped JSON lines; the same questions give the same bytes."""
    lines = "".join(json.dumps(q, separators=(",", ":")) + "\n" for q in questions)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(lines.encode(), compresslevel=9, mtime=0))


def parse_args() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Train the model that wdsbench demo runs on.")
    parser.add_argument("--out", type=Path, default=Path("wdsbench/demo/model"))
    parser.add_argument("--questions", type=Path, default=Path("wdsbench/demo/questions.jsonl.gz"))
    parser.add_argument("--steps", type=int, default=1_200)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Make the world, train, write the model and the questions."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    world = make_world(args.seed)
    tokenizer = make_tokenizer(world)
    model = make_model(tokenizer)
    print(f"{len(tokenizer):,} words, {sum(p.numel() for p in model.parameters()):,} parameters")
    train(model, Corpus(world, tokenizer, args.seed), args)
    model.half().save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    write_questions(args.questions, make_questions(world, args.seed))


if __name__ == "__main__":
    main()
