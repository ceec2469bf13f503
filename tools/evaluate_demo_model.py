"""Measure the demo model's wrong answers and how well states and log-probabilities reveal them.

    python tools/evaluate_demo_model.py --seeds 3

Greedy answers, normalised exact match against the references (label 1 = wrong). Then, on the test
questions, AUROC of the answer's length, of its mean and least log-probability, of a logistic probe
on each layer's state of the last answer token, and of a two-layer bidirectional LSTM over the
layers, each with a bootstrap interval; the trained ones also as paired difference to
``logprob_mean``. The kept sequence is the prompt and the generated tokens before ``<eos>``; its
last token is the full stop that closes the answer.
"""

from __future__ import annotations

import argparse
import gzip
import json
import string
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

# Shares of a seeded permutation of the questions; the rest is the test split.
TRAIN_SHARE, VALIDATION_SHARE = 0.70, 0.15
RESAMPLES = 1_000
DETECTOR_BATCH, DETECTOR_EPOCHS, PATIENCE = 64, 60, 8


@dataclass(frozen=True)
class Answers:
    """The model's answers to N questions.

    Attributes:
        wrong: int64 [N], 1 if the answer is none of the references.
        lengths: int64 [N], number of answer tokens including the full stop.
        logprob_mean: float64 [N], mean log-probability of the answer tokens.
        logprob_min: float64 [N], least log-probability of an answer token.
        states: float32 [N, L, D], ``hidden_states[l + 1]`` at the last answer token.
        prompt_states: float32 [N, L, D], the same at the last prompt token.
        texts: The answers.
    """

    wrong: Ints
    lengths: Ints
    logprob_mean: Floats
    logprob_min: Floats
    states: npt.NDArray[np.float32]
    prompt_states: npt.NDArray[np.float32]
    texts: list[str]


def read_questions(path: Path) -> list[dict[str, Any]]:
    """Return the questions of a gzipped JSON lines file."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def normalise(text: str) -> str:
    """Return ``text`` in lower case without punctuation and with single spaces."""
    return " ".join(text.lower().translate(str.maketrans("", "", string.punctuation)).split())


def answer(model: Any, tokenizer: Any, questions: list[dict[str, Any]], batch_size: int) -> Answers:
    """Return greedy answers; each batch is generated, then run once over prompts and answers."""
    parts: list[tuple[Any, ...]] = []
    texts: list[str] = []
    for start in range(0, len(questions), batch_size):
        chunk = questions[start : start + batch_size]
        prompt = tokenizer([q["question"] for q in chunk], return_tensors="pt", padding=True)
        width = prompt.input_ids.shape[1]
        with torch.inference_mode():
            tokens = model.generate(**prompt)
            new = tokens[:, width:]
            # <eos> and the padding after it are dropped.
            kept = (new != tokenizer.eos_token_id) & (new != tokenizer.pad_token_id)
            kept = kept.cumprod(dim=1).bool()
            mask = torch.cat([prompt.attention_mask, kept.long()], dim=1)
            out = model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
                output_hidden_states=True,
            )
        lengths = kept.sum(dim=1)
        logprobs = torch.log_softmax(out.logits[:, width - 1 : -1].float(), dim=-1)
        logprobs = logprobs.gather(2, new.unsqueeze(2)).squeeze(2)
        states = torch.stack(out.hidden_states[1:], dim=1).float()
        rows = torch.arange(len(chunk))
        parts.append(
            (
                lengths,
                (logprobs * kept).sum(dim=1) / lengths.clamp(min=1),
                logprobs.masked_fill(~kept, 0.0).amin(dim=1),
                states[rows, :, width - 1 + lengths],
                states[rows, :, width - 1],
            )
        )
        texts += [
            tokenizer.decode(row[keep], skip_special_tokens=True)
            for row, keep in zip(new, kept, strict=True)
        ]
    lengths_, mean, least, answer_states, prompt_states = (
        torch.cat(column).numpy() for column in zip(*parts, strict=True)
    )
    wrong = [
        normalise(text) not in {normalise(reference) for reference in q["references"]}
        for text, q in zip(texts, questions, strict=True)
    ]
    return Answers(
        wrong=np.array(wrong, dtype=np.int64),
        lengths=lengths_,
        logprob_mean=mean.astype(np.float64),
        logprob_min=least.astype(np.float64),
        states=answer_states,
        prompt_states=prompt_states,
        texts=texts,
    )


def split(count: int, seed: int) -> tuple[Ints, Ints, Ints]:
    """Return the positions of the training, validation and test questions."""
    order = np.random.default_rng(seed).permutation(count)
    first, second = int(count * TRAIN_SHARE), int(count * (TRAIN_SHARE + VALIDATION_SHARE))
    return order[:first], order[first:second], order[second:]


def bootstrap(
    labels: Ints, statistic: Callable[[Ints], float], seed: int
) -> tuple[float, float, float]:
    """Return ``statistic`` of all positions and its 2.5 and 97.5 % quantiles by resampling."""
    rng = np.random.default_rng(seed)
    values: list[float] = []
    while len(values) < RESAMPLES:
        places = rng.integers(len(labels), size=len(labels))
        if 0 < labels[places].sum() < len(labels):
            values.append(statistic(places))
    low, high = np.quantile(values, (0.025, 0.975))
    return statistic(np.arange(len(labels))), float(low), float(high)


def probe_scores(x: npt.NDArray[np.float32], y: Ints, train: Ints, val: Ints, test: Ints) -> Floats:
    """Return test scores of a logistic regression; its regularisation is chosen on ``val``."""
    best: tuple[float, Any] = (-1.0, None)
    for strength in (1e-3, 1e-2, 1e-1):
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2_000))
        probe.fit(x[train], y[train])
        found = roc_auc_score(y[val], probe.decision_function(x[val]))
        best = max(best, (found, probe), key=lambda pair: pair[0])
    return np.asarray(best[1].decision_function(x[test]))


class LayerLSTM(nn.Module):
    """Two-layer bidirectional LSTM over the layers' states: [B, L, D] to logits [B]."""

    def __init__(self, features: int, hidden: int = 64) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            features, hidden, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3
        )
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * hidden, 1))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return one logit per sample from the last states of both directions."""
        _, (last, _) = self.lstm(states)
        logits: torch.Tensor = self.head(torch.cat([last[-2], last[-1]], dim=1)).squeeze(1)
        return logits


def lstm_scores(
    x: npt.NDArray[np.float32], y: Ints, train: Ints, val: Ints, test: Ints, seed: int
) -> Floats:
    """Return test scores of an LSTM trained on raw states, stopped early by validation AUROC."""
    torch.manual_seed(seed)
    states, labels = torch.from_numpy(x), torch.from_numpy(y).float()
    detector = LayerLSTM(x.shape[2])
    optimizer = torch.optim.AdamW(detector.parameters(), lr=1e-3, weight_decay=1e-3)
    best, best_scores, waited = -1.0, np.zeros(len(test)), 0
    for _ in range(DETECTOR_EPOCHS):
        detector.train()
        order = torch.from_numpy(train)[torch.randperm(len(train))]
        for start in range(0, len(train), DETECTOR_BATCH):
            rows = order[start : start + DETECTOR_BATCH]
            loss: Any = nn.functional.binary_cross_entropy_with_logits(
                detector(states[rows]), labels[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        detector.eval()
        with torch.inference_mode():
            found = float(roc_auc_score(y[val], detector(states[val]).numpy()))
            waited += 1
            if found > best:
                best, waited = found, 0
                best_scores = detector(states[test]).numpy().astype(np.float64)
        if waited == PATIENCE:
            break
    return best_scores


def auroc_of(labels: Ints, scores: Floats, places: Ints) -> float:
    """Return the AUROC of ``scores`` at ``places``."""
    return float(roc_auc_score(labels[places], scores[places]))


def gain_of(labels: Ints, scores: Floats, base: Floats, places: Ints) -> float:
    """Return the AUROC of ``scores`` minus that of ``base`` at ``places``."""
    return auroc_of(labels, scores, places) - auroc_of(labels, base, places)


def print_kinds(questions: list[dict[str, Any]], answers: Answers) -> None:
    """Print error rate, length and log-probability by kind of question."""
    kinds = np.array([q.get("kind", "all") for q in questions])
    print(
        f"{'kind':15s} {'n':>6s} {'wrong':>7s} {'length':>7s} {'logprob right':>14s} {'wrong':>7s}"
    )
    for kind in [*sorted(set(kinds)), "all"]:
        here = np.ones(len(kinds), bool) if kind == "all" else kinds == kind
        wrong = answers.wrong == 1
        right_mean, wrong_mean = (
            float(answers.logprob_mean[here & rows].mean()) if (here & rows).any() else float("nan")
            for rows in (~wrong, wrong)
        )
        print(
            f"{kind:15s} {here.sum():6d} {answers.wrong[here].mean():7.3f} "
            f"{answers.lengths[here].mean():7.2f} {right_mean:14.3f} {wrong_mean:7.3f}"
        )


def print_detectors(answers: Answers, seed: int) -> None:
    """Print the test AUROC of every detector for one seed of split and training."""
    train, val, test = split(len(answers.wrong), seed)
    labels = answers.wrong[test]
    base = -answers.logprob_mean[test]
    scores: dict[str, Floats] = {
        "length": answers.lengths[test].astype(np.float64),
        "logprob_mean": base,
        "logprob_min": -answers.logprob_min[test],
    }
    y = answers.wrong
    layers = answers.states.shape[1]
    for layer in range(layers):
        scores[f"probe_logistic layer {layer}"] = probe_scores(
            answers.states[:, layer], y, train, val, test
        )
    scores[f"probe_logistic layer {layers - 1}, last prompt token"] = probe_scores(
        answers.prompt_states[:, -1], y, train, val, test
    )
    scores["lstm"] = lstm_scores(answers.states, y, train, val, test, seed)
    print(
        f"\nseed {seed}: {len(train)}/{len(val)}/{len(test)} questions; test {labels.sum()} wrong"
    )
    for name, values in scores.items():
        auroc, low, high = bootstrap(labels, partial(auroc_of, labels, values), seed)
        line = f"  {name:42s} {auroc:.3f} [{low:.3f}, {high:.3f}]"
        if name.startswith(("probe", "lstm")):
            gain, low, high = bootstrap(labels, partial(gain_of, labels, values, base), seed)
            line += f"  minus logprob_mean {gain:+.3f} [{low:+.3f}, {high:+.3f}]"
        print(line)


def parse_args() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Measure the demo model's hallucinations.")
    parser.add_argument("--model", type=Path, default=Path("wdsbench/demo/model"))
    parser.add_argument("--questions", type=Path, default=Path("wdsbench/demo/questions.jsonl.gz"))
    parser.add_argument("--questions-used", type=int, default=None, help="ask only the first N")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3, help="splits and detector seeds 0, 1, ...")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Answer the questions and print all metrics."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    questions = read_questions(args.questions)[: args.questions_used]
    started = time.perf_counter()
    answers = answer(model, tokenizer, questions, args.batch_size)
    print(f"{len(questions)} answers in {time.perf_counter() - started:.1f} s")
    for question, text in list(zip(questions, answers.texts, strict=True))[:6]:
        print(f"  {question['question']} {text} (true: {question['references'][0]})")
    verdicts = sum("true" in text or "false" in text for text in answers.texts)
    print(f"answers with a verdict: {verdicts}")
    print_kinds(questions, answers)
    for seed in range(args.seeds):
        print_detectors(answers, seed)


if __name__ == "__main__":
    main()
