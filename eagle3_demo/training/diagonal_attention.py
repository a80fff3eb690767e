"""Attention of the training-time test: all keys of real features up to a slot, and that slot's own chain of steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attend_to_steps(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    diagonal_keys: list[Tensor],
    diagonal_values: list[Tensor],
    mask: Tensor,
) -> Tensor:
    """Attention of one simulated step, on the fused kernel where there is one.

    Args:
        queries: [batch, heads, q, d].
        keys, values: [batch, heads, n, d], of step 0.
        diagonal_keys, diagonal_values: [batch, heads, q, d] for each earlier step and this one, from step 1 on.
        mask: float [batch, 1, q, n], which step-0 keys each query sees.

    Returns:
        [batch, heads, q, d].
    """
    dtype = queries.dtype
    own_keys, own_values = (
        torch.stack(parts) if parts else queries.new_zeros(0) for parts in (diagonal_keys, diagonal_values)
    )
    attend = DiagonalAttention.apply if queries.device.type == "cpu" else plain_diagonal_attention
    return attend(queries, keys.to(dtype), values.to(dtype), own_keys, own_values, mask.to(dtype))


class DiagonalAttention(torch.autograd.Function):
    """Attention over step-0 keys (masked) and one key per query from each earlier step, with linear memory, on a CPU.

    The step-0 part runs in torch's fused CPU kernel; the diagonal part is merged in by log-sum-exp. The fused backward
    is exact for the step-0 part when it is given the merged output and log-sum-exp.

    Shapes: queries [batch, heads, q, d]; keys, values [batch, heads, n, d]; diagonal_keys, diagonal_values
    [steps, batch, heads, q, d]; mask float [batch, 1, q, n].
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        diagonal_keys: Tensor,
        diagonal_values: Tensor,
        mask: Tensor,
    ) -> Tensor:
        scale = queries.shape[-1] ** -0.5
        output, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, 0.0, False, attn_mask=mask, scale=scale
        )
        total = total.float()
        if len(diagonal_keys):
            scores = (queries.float() * diagonal_keys.float()).sum(-1) * scale
            merged = torch.logsumexp(torch.cat([total[None], scores]), 0)
            shared = torch.exp(total - merged)[..., None] * output.float()
            own = (torch.exp(scores - merged)[..., None] * diagonal_values.float()).sum(0)
            output, total = (shared + own).to(queries.dtype), merged
        ctx.save_for_backward(queries, keys, values, diagonal_keys, diagonal_values, mask, output, total)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, diagonal_keys, diagonal_values, mask, output, total = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        scale = queries.shape[-1] ** -0.5
        to_queries, to_keys, to_values = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, queries, keys, values, output, total, 0.0, False, attn_mask=mask, scale=scale
        )
        if not len(diagonal_keys):
            return to_queries, to_keys, to_values, None, None, None
        scores = (queries.float() * diagonal_keys.float()).sum(-1) * scale
        weights = torch.exp(scores - total)
        wide = gradient.float()
        delta = (wide * output.float()).sum(-1)
        to_scores = weights * ((wide * diagonal_values.float()).sum(-1) - delta) * scale
        to_queries = to_queries + (to_scores[..., None] * diagonal_keys.float()).sum(0).to(queries.dtype)
        to_diagonal_keys = (to_scores[..., None] * queries.float()).to(queries.dtype)
        to_diagonal_values = (weights[..., None] * wide).to(queries.dtype)
        return to_queries, to_keys, to_values, to_diagonal_keys, to_diagonal_values, None


def plain_diagonal_attention(
    queries: Tensor, keys: Tensor, values: Tensor, diagonal_keys: Tensor, diagonal_values: Tensor, mask: Tensor
) -> Tensor:
    """The same as `DiagonalAttention` in plain operations, for every device; shapes as there."""
    scale, n = queries.shape[-1] ** -0.5, keys.shape[2]
    scores = (queries @ keys.transpose(-1, -2)).float() * scale + mask.float()
    if not len(diagonal_keys):
        return torch.softmax(scores, -1).to(queries.dtype) @ values
    own = (queries.float() * diagonal_keys.float()).sum(-1).permute(1, 2, 3, 0) * scale
    weights = torch.softmax(torch.cat([scores, own], -1), -1).to(queries.dtype)
    shared = weights[..., :n] @ values
    return shared + torch.einsum("bhqs,sbhqd->bhqd", weights[..., n:], diagonal_values)
