"""The graph detectors by their definitions: plain loops over samples, layers, tokens and edges, one
graph after the other, nothing batched. They share the weights and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from train.planted import Sample, make_samples, union_edges

from wdsbench.detect.charm import CharmDetector, EdgeVectorRound
from wdsbench.detect.gnn import AttentionRound, GNNDetector
from wdsbench.detect.gvae import GVAEDetector

Triple = tuple[int, int, Tensor]


def odd_samples() -> list[Sample]:
    """Return traces of different lengths; one has one token, one has no edge in one layer, one has
    none at all, one has no answer.
    """
    samples = make_samples(7, signal=1.0, seed=0)
    lone, gap, bare, mute = samples[2:6]

    def without(layer: int, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
        return sample.edges[layer][0][:, :0], sample.edges[layer][1][:0]

    samples[2] = replace(
        lone, hidden=lone.hidden[:, -1:], edges=[without(0, lone)] * 3, prompt_length=0
    )
    samples[3] = replace(gap, edges=[gap.edges[0], without(1, gap), gap.edges[2]])
    samples[4] = replace(bare, edges=[without(layer, bare) for layer in range(3)])
    samples[5] = replace(mute, prompt_length=mute.hidden.shape[1])
    return samples


def assert_twins(
    detector: nn.Module,
    fast: Callable[[], Tensor],
    slow: Callable[[], Tensor],
    samples: list[Sample],
    penalised: bool = False,
    tolerance: float = 1e-5,
) -> dict[str, Tensor]:
    """Check that outputs and gradients agree, and return the gradients.

    The outputs are logits ``[B]``, or with a penalty ``[2, B]``.
    """
    labels = torch.tensor([sample.label for sample in samples])
    outputs, gradients = [], []
    for forward in (fast, slow):
        detector.zero_grad()
        output = forward()
        logits = output[0] if penalised else output
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        if penalised:
            loss = loss + output[1].mean()
        loss.backward()
        outputs.append(output.detach())
        gradients.append(
            {
                name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
                for name, weight in detector.named_parameters()
            }
        )
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=tolerance)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(
            gradient, gradients[1][name], rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    return gradients[0]


def triples(index: np.ndarray, values: np.ndarray) -> list[Triple]:
    """Return (source, target, value) of every edge."""
    return [
        (source, target, torch.as_tensor(value).reshape(-1))
        for source, target, value in zip(*index.tolist(), values, strict=True)
    ]


def layer_states(sample: Sample, layer: int, detector: nn.Module) -> list[Tensor]:
    """Return one layer's standardised states, token by token."""
    mean, std = detector.scale.mean[layer], detector.scale.std[layer]
    states = torch.from_numpy(sample.hidden[layer]).to(mean.dtype)
    return [((state - mean) / std).clamp(-10, 10) for state in states]


def scaled_weight(value: Tensor, detector: nn.Module) -> Tensor:
    """Return one standardised attention weight ``[1]``."""
    scale = detector.scale_weights
    logarithm = math.log(max(float(value), 2.0**-14))
    return ((logarithm - scale.mean) / scale.std).clamp(-3, 3)


def slow_attention_round(
    module: AttentionRound, nodes: list[Tensor], edges: list[Triple]
) -> list[Tensor]:
    """Return one gated GINE round, target by target and edge by edge."""
    rows = []
    for place, node in enumerate(nodes):
        summed = (1 + module.conv.eps) * node
        for source, target, value in edges:
            if target == place:
                edge = module.conv.lin(value.to(node.dtype))
                summed = summed + torch.relu(nodes[source] + edge)
                summed = summed + module.conv.gate * nodes[source] * edge
        rows.append(module.norm(node + module.conv.nn(summed)))
    return rows


def slow_gnn(detector: GNNDetector, samples: list[Sample]) -> Tensor:
    """Return logits, all tokens in both rounds."""
    logits = []
    for sample in samples:
        sequence = []
        for layer, (index, weight) in enumerate(sample.edges):
            raw = layer_states(sample, layer, detector)
            edges = [(j, i, scaled_weight(w, detector)) for j, i, w in triples(index, weight)]
            nodes = [detector.project(state) for state in raw]
            nodes = slow_attention_round(detector.first, nodes, edges)
            nodes = slow_attention_round(detector.second, nodes, edges)
            sequence.append(torch.cat([raw[-1], nodes[-1]]))
        logits.append(detector.over_layers(torch.stack(sequence)[None])[0])
    return torch.stack(logits)


def slow_gvae(detector: GVAEDetector, samples: list[Sample], noise: Tensor) -> Tensor:
    """Return logits and penalties, ``[2, B]``; ``noise`` is ``[B, L, latent]``."""
    logits, penalties = [], []
    for place, sample in enumerate(samples):
        sequence, terms = [], []
        for layer, (index, weight) in enumerate(sample.edges):
            raw = layer_states(sample, layer, detector)
            edges = triples(index, weight)
            projected = [detector.project(state) for state in raw]
            scaled = [(j, i, scaled_weight(w, detector)) for j, i, w in edges]
            nodes = slow_attention_round(detector.first, projected, scaled)
            nodes = slow_attention_round(detector.second, nodes, scaled)
            readout = torch.cat([sum(nodes) / len(nodes), nodes[-1]])
            mean = detector.to_mean(readout)
            log_variance = detector.to_log_variance(readout).clamp(-8, 4)
            latent = mean + noise[place, layer] * torch.exp(log_variance / 2)
            sequence.append(latent)

            told = detector.tell_states(latent)
            pooled = torch.cat([sum(raw) / len(raw), raw[-1]])
            distance = (told - pooled).abs()
            states_error = torch.where(distance < 1, distance**2 / 2, distance - 0.5).mean()
            weights_error = torch.zeros_like(states_error)
            for source, target, value in edges:
                query = detector.attending(projected[target]) + detector.bend(latent)
                key = detector.attended(projected[source])
                chance = torch.sigmoid(torch.dot(query, key) / math.sqrt(len(key)))
                value = value[0].to(chance.dtype)
                error = -(value * chance.log() + (1 - value) * (1 - chance).log())
                weights_error = weights_error + error / len(edges)
            normal = torch.distributions.Normal(0.0, 1.0)
            found = torch.distributions.Normal(mean, torch.exp(log_variance / 2))
            divergence = torch.distributions.kl_divergence(found, normal).mean()
            terms.append(0.1 * (weights_error + states_error) + 0.01 * divergence)
        logits.append(detector.over_layers(torch.stack(sequence)[None])[0])
        penalties.append(sum(terms) / len(terms))
    return torch.stack([torch.stack(logits), torch.stack(penalties)])


def slow_vector_round(
    module: EdgeVectorRound, nodes: list[Tensor], edges: list[Triple]
) -> list[Tensor]:
    """Return one round of messages, target by target and edge by edge."""
    rows = []
    for place, node in enumerate(nodes):
        messages = []
        for source, target, value in edges:
            if target == place:
                edge = module.edge(value.to(node.dtype))
                passed = torch.relu(nodes[source] + edge)
                messages.append(passed + module.gate * nodes[source] * edge)
        mean = sum(messages) / len(messages) if messages else torch.zeros_like(node)
        rows.append(module.norm(node + module.update(torch.cat([node, mean]))))
    return rows


def slow_charm(
    detector: CharmDetector, samples: list[Sample], edges: list[list[Triple]] | None = None
) -> Tensor:
    """Return logits; ``edges`` of every sample in place of its own."""
    logits = []
    for place, sample in enumerate(samples):
        layers = [layer_states(sample, layer, detector) for layer in range(len(sample.hidden))]
        nodes = []
        for token in range(sample.hidden.shape[1]):
            projected = torch.cat([detector.project(layer[token]) for layer in layers])
            nodes.append(detector.join_layers[2](detector.join_layers[1](projected)))
        own = triples(*union_edges(sample)) if edges is None else edges[place]
        nodes = slow_vector_round(detector.first, nodes, own)
        nodes = slow_vector_round(detector.second, nodes, own)
        answer = nodes[sample.prompt_length :]
        mean = sum(answer) / len(answer) if answer else torch.zeros_like(nodes[0])
        logits.append(detector.readout(torch.cat([mean, nodes[-1]]))[0])
    return torch.stack(logits)
