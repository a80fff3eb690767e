"""The training-time test: the head is trained on its own states, as many steps ahead as it will draft.

Step k at slot i simulates the k-th drafted token after the prefix 0..i. It attends to the keys of real features
(step 0) at slots 0..i and to its own chain (slot i of steps 1..k); the tokens are the corpus's own, only the hidden
state is the head's (eagle3_reference.md 3.1). Slot p is supervised at step k iff tokens p+1 and p+2+k were both written
by the target (3.2): the mask moves with the labels.

Only slots that are supervised at step 0 are computed at all; the others lend their step-0 keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from eagle3_demo.models.head import Eagle3Head


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Sequences right-aligned in one block: the last column of every row is that sequence's last token.

    Attributes:
        tokens: int64 [batch, n].
        real: bool [batch, n], false on padding.
        answer: bool [batch, n], true where the target wrote the token.
        taps: [batch, n, 3 * target hidden], the target's features.
        final: [batch, n, target hidden], the target's last hidden state after its final norm.
        choice: int64 [batch, n], the target's most likely next token at each position, from its whole vocabulary.
    """

    tokens: Tensor
    real: Tensor
    answer: Tensor
    taps: Tensor
    final: Tensor
    choice: Tensor

    def split(self, rows: int) -> list[TrainingBatch]:
        """The same sequences in batches of at most `rows`."""
        columns = zip(*(getattr(self, field.name).split(rows) for field in fields(self)), strict=True)
        return [TrainingBatch(*parts) for parts in columns]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Loss and acceptance of one step ahead, over its supervised slots.

    Attributes:
        loss: scalar, mean soft cross-entropy over supervised slots; 0 when there are none.
        matches: how often the head's first choice is the target's.
        slots: number of supervised slots; the loss leaves out those whose choice the draft vocabulary lacks.
    """

    loss: Tensor
    matches: Tensor
    slots: int


class DiagonalAttention(torch.autograd.Function):
    """Attention over step-0 keys (masked) and one key per query from each earlier step, with linear memory.

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


def training_time_test(
    head: Eagle3Head, embedding: Tensor, target_lm_head: Tensor, batch: TrainingBatch, steps_ahead: int
) -> list[StepResult]:
    """Runs the head `steps_ahead` steps on its own states.

    Args:
        head: the head being trained.
        embedding: [target vocabulary, hidden], the target's frozen embeddings.
        target_lm_head: [draft vocabulary, target hidden], the target's own rows for the draft vocabulary.

    Returns:
        one result a step; combine the losses with 0.8^k (`total_loss`).
    """
    slots = supervised_slots(batch)
    if not slots.rows.numel():
        raise ValueError("the batch has no supervised slot")
    shifted = functional.pad(batch.tokens[:, 1:], (0, 1))
    positions = (batch.real.long().cumsum(-1) - 1).clamp_min(0)
    fused = head.fuse(batch.taps)
    keys, values = head.keys_values(head.layer_input(functional.embedding(shifted, embedding), fused), positions)
    groups = head.config.num_attention_heads // head.config.num_key_value_heads
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    hidden = fused[:, slots.first :]
    labels = _target_probabilities(batch, target_lm_head)
    diagonal_keys: list[Tensor] = []
    diagonal_values: list[Tensor] = []
    results = []
    for step in range(steps_ahead):
        tokens = functional.pad(shifted[:, step:], (0, step))[:, slots.first :]
        layer_input = head.layer_input(functional.embedding(tokens, embedding), hidden)
        own_positions = positions[:, slots.first :] + step
        queries = head.queries(layer_input, own_positions)
        if step:
            own_keys, own_values = head.keys_values(layer_input, own_positions)
            diagonal_keys.append(own_keys.repeat_interleave(groups, 1))
            diagonal_values.append(own_values.repeat_interleave(groups, 1))
        attended = _attend(queries, keys, values, diagonal_keys, diagonal_values, slots.mask)
        output = head.finish(head.residual(layer_input, hidden), attended.transpose(1, 2).flatten(2))
        results.append(_step_result(head, labels, batch, slots, output, step))
        hidden = head.feedback(output)
    return results


def total_loss(results: list[StepResult], decay: float = 0.8) -> Tensor:
    """The weighted sum of the steps' losses, step k at `decay`^k, normalised by the weights."""
    weights = [decay**step for step in range(len(results))]
    return sum((w * r.loss for w, r in zip(weights, results, strict=True)), torch.zeros(())) / sum(weights)


@dataclass(frozen=True, slots=True)
class Slots:
    """Where queries are computed: columns from `first` on; `rows`, `columns` [slots] index those supervised at step 0.

    `mask` float [batch, 1, queries, n]: which step-0 keys each query sees.
    """

    first: int
    rows: Tensor
    columns: Tensor
    mask: Tensor


def supervised_slots(batch: TrainingBatch) -> Slots:
    """The slots whose own next token and the one after it were both written by the target."""
    supervised = batch.answer[:, 1:-1] & batch.answer[:, 2:]
    n = batch.tokens.shape[1]
    columns_used = supervised.any(0).nonzero()
    first = int(columns_used[0]) if len(columns_used) else 0
    rows, columns = supervised.nonzero(as_tuple=True)
    column = torch.arange(n, device=batch.tokens.device)
    causal = column[None, :] <= column[first:, None]
    visible = causal[None] & batch.real[:, None, :]
    # Padding queries see themselves: softmax over nothing is NaN.
    visible |= column[None, :] == column[first:, None]
    mask = torch.zeros(visible.shape, dtype=batch.taps.dtype, device=visible.device)
    return Slots(first, rows, columns, mask.masked_fill(~visible, float("-inf"))[:, None])


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    diagonal_keys: list[Tensor],
    diagonal_values: list[Tensor],
    mask: Tensor,
) -> Tensor:
    dtype = queries.dtype
    stacked = [torch.stack(parts) if parts else queries.new_zeros(0) for parts in (diagonal_keys, diagonal_values)]
    return DiagonalAttention.apply(queries, keys.to(dtype), values.to(dtype), *stacked, mask.to(dtype))


@torch.no_grad()
def _target_probabilities(batch: TrainingBatch, target_lm_head: Tensor) -> tuple[Tensor, Tensor]:
    """The target's distribution over the draft vocabulary wherever a label may follow; every step shares it.

    Returns:
        probabilities [positions, draft vocabulary] and the row of each position, int64 [batch, n].
    """
    wanted = functional.pad(batch.answer[:, 1:], (0, 1))
    probabilities = torch.softmax(functional.linear(batch.final[wanted], target_lm_head).float(), -1)
    row = (wanted.flatten().long().cumsum(0) - 1).view(wanted.shape)
    return probabilities.to(batch.final.dtype), row


def _step_result(
    head: Eagle3Head,
    labels: tuple[Tensor, Tensor],
    batch: TrainingBatch,
    slots: Slots,
    output: Tensor,
    step: int,
) -> StepResult:
    target_probabilities, target_row = labels
    n = batch.tokens.shape[1]
    in_range = slots.columns + 2 + step < n
    rows, columns = slots.rows[in_range], slots.columns[in_range]
    labelled = batch.answer[rows, columns + 2 + step]
    rows, columns = rows[labelled], columns[labelled]
    if not len(rows):
        zero = output.sum() * 0
        return StepResult(zero, zero.detach(), 0)
    logits = head.logits(output[rows, columns - slots.first])
    choice = batch.choice[rows, columns + 1 + step]
    known = head.t2d[choice]
    target = target_probabilities[target_row[rows, columns + 1 + step]].to(logits.dtype)
    loss = (SoftCrossEntropy.apply(logits, target) * known).sum() / known.sum().clamp_min(1)
    with torch.no_grad():
        matches = (head.target_ids(logits.argmax(-1)) == choice).sum()
    return StepResult(loss, matches, len(rows))
