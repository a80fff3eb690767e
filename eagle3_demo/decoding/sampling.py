"""From logits to the next token: one chain for plain decoding and for verification, with noise fixed in advance.

Why sampled speculation is exact here: the token at absolute position p is `argmax(log-probabilities + Gumbel noise)`,
and the noise is a function of (seed, p) alone, drawn from a counter-based generator. By the Gumbel-max identity that
is a draw from the target's distribution. Verification asks the same question at each node of the tree — which token
would plain decoding emit here? — and gets the same answer, because neither the draft nor the shape of the tree enters
it. Sampled output therefore equals plain sampling with the same seed token for token, whatever was drafted, and its
distribution is the target's (performance_reference.md 2.3).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eagle3_demo.settings import SamplingSettings

_SHORTLIST = 1024


@torch.inference_mode()
def pick(logits: Tensor, position: int, sampling: SamplingSettings) -> int:
    """The token that plain decoding emits at a position.

    Args:
        logits: [V] or [1, V], the target's at the position before.
        position: absolute position of the token that is picked.
        sampling: temperature, top-k, top-p and the seed of the request.
    """
    row = logits.reshape(-1)
    if sampling.greedy:
        return int(row.argmax())
    scores = _warp(row[None].float(), sampling)[0].double().cpu().numpy()
    kept = np.flatnonzero(np.isfinite(scores))
    noise = _gumbel(sampling.seed, position, len(scores))[kept]
    return int(kept[np.argmax(scores[kept] + noise)])


@torch.inference_mode()
def processed_log_probabilities(logits: Tensor, sampling: SamplingSettings) -> Tensor:
    """Log-probabilities after temperature, top-k and top-p; all mass on the argmax when greedy.

    Args:
        logits: [V] or [n, V].

    Returns:
        float32 of the same shape; -inf where a token cannot be drawn.
    """
    rows = logits.reshape(-1, logits.shape[-1]).float()
    if sampling.greedy:
        result = torch.full_like(rows, -torch.inf).scatter_(1, rows.argmax(-1, keepdim=True), 0.0)
    else:
        result = torch.log_softmax(_warp(rows, sampling), -1)
    return result.view(logits.shape)


def _warp(rows: Tensor, sampling: SamplingSettings) -> Tensor:
    """transformers' own warpers in transformers' order, float32 [n, V] -> [n, V]."""
    rows = TemperatureLogitsWarper(sampling.temperature)(None, rows)
    if sampling.top_k:
        rows = TopKLogitsWarper(sampling.top_k)(None, rows)
    if sampling.top_p < 1:
        rows = torch.cat([_nucleus(row[None], sampling.top_p) for row in rows])
    return rows


def _nucleus(row: Tensor, top_p: float) -> Tensor:
    """Top-p of [1, V] over the most likely tokens only, when they hold enough mass: sorting all of V takes long.

    The rule keeps a token while the mass above it is below top-p. Within a shortlist of mass m that is top-p / m.
    """
    scores, ids = row.topk(min(_SHORTLIST, row.shape[-1]))
    mass = float((scores.logsumexp(-1) - row.logsumexp(-1)).exp())
    if mass <= top_p:
        return TopPLogitsWarper(top_p)(None, row)
    kept = TopPLogitsWarper(top_p / mass)(None, scores)
    return torch.full_like(row, -torch.inf).scatter_(1, ids, kept)


def _gumbel(seed: int, position: int, size: int) -> np.ndarray:
    """Standard Gumbel noise, float64 [size], a function of its arguments alone."""
    key = np.array([seed, position], dtype=np.uint64)
    uniform = np.random.Generator(np.random.Philox(key=key)).random(size)
    with np.errstate(divide="ignore"):
        return -np.log(-np.log(uniform))
