"""What is minimised at one step ahead: how far the head's next-token distribution is from the target's.

All losses compare logits q over the draft vocabulary with the target's distribution p, renormalised over it:

- `soft`: cross-entropy to p, as the public EAGLE-3 code has it (eagle3_reference.md 3.1);
- `hard`: cross-entropy to the target's first choice alone;
- `topk`: soft, and once more for p's ten most likely tokens only (HASS's top-k loss at weight 1);
- `lk`: lambda * KL(p, q) + (1 - lambda) * TV(p, q), lambda = exp(-3 * alpha): as the expected acceptance
  alpha = 1 - TV rises, the total variation takes over (LK losses, arXiv 2602.23881). alpha is that of each slot.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

LossKind = Literal["soft", "hard", "lk", "topk"]

TOP_K = 10
LK_RATE = 3.0


class SoftCrossEntropy(torch.autograd.Function):
    """Cross-entropy to a distribution in few passes over the logits: `logsumexp(logits) - sum(target * logits)`.

    Shapes: logits, target [rows, vocabulary]; the result float32 [rows]. The target gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        total = torch.logsumexp(logits.float(), -1)
        ctx.save_for_backward(logits, target, total)
        return total - torch.linalg.vecdot(logits, target).float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, target, total = ctx.saved_tensors
        slope = (logits.float() - total[:, None]).exp_().sub_(target).mul_(gradients[0][:, None])
        return slope.to(logits.dtype), None


def token_losses(kind: LossKind, logits: Tensor, target: Tensor, choice: Tensor) -> Tensor:
    """The loss of every row.

    Args:
        logits: [rows, draft vocabulary], the head's.
        target: [rows, draft vocabulary], the target's probabilities.
        choice: int64 [rows], the target's first choice as a draft id; read by `hard` alone.

    Returns:
        float32 [rows].
    """
    if kind == "hard":
        return functional.cross_entropy(logits.float(), choice, reduction="none")
    if kind == "topk":
        return _with_top_k(logits, target)
    if kind == "lk":
        return _lk_hybrid(logits, target)
    return SoftCrossEntropy.apply(logits, target)


def _with_top_k(logits: Tensor, target: Tensor) -> Tensor:
    likely = target.topk(min(TOP_K, target.shape[-1]), -1)
    weighted = target.float().scatter_add(-1, likely.indices, likely.values.float())
    mass = weighted.sum(-1)
    return SoftCrossEntropy.apply(logits, (weighted / mass[:, None]).to(target.dtype)) * mass


def _lk_hybrid(logits: Tensor, target: Tensor) -> Tensor:
    log_q, p = functional.log_softmax(logits.float(), -1), target.float()
    divergence = functional.kl_div(log_q, p, reduction="none").sum(-1)
    alpha = torch.minimum(log_q.exp(), p).sum(-1)
    share = torch.exp(-LK_RATE * alpha.detach())
    return share * divergence + (1 - share) * (1 - alpha)
