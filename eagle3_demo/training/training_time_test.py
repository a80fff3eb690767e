"""The training-time test: the head is trained on its own states, as many steps ahead as it will draft.

Step k at slot i simulates the k-th drafted token after the prefix 0..i. It attends to the keys of real features
(step 0) at slots 0..i and to its own chain (slot i of steps 1..k); the tokens are the corpus's own, only the hidden
state is the head's (eagle3_reference.md 3.1). Slot p is supervised at step k iff tokens p+1 and p+2+k were both written
by the target (3.2), and so was everything in between: the mask moves with the labels, and no slot looks from one turn
into the next.

Only slots that are supervised at step 0 are computed at all; the others lend their step-0 keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

from eagle3_demo.models.head import Eagle3Head
from eagle3_demo.training.diagonal_attention import attend_to_steps
from eagle3_demo.training.losses import LossKind, token_losses


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
        loss: scalar, mean over the valid slots; 0 when there are none.
        matches: how often the head's first choice is the target's.
        slots: number of supervised slots.
        valid: int64 scalar, supervised slots whose choice the draft vocabulary has: those that the loss is a mean of.
            None where that is all of them.
    """

    loss: Tensor
    matches: Tensor
    slots: int
    valid: Tensor | None = None


def training_time_test(
    head: Eagle3Head,
    embedding: Tensor,
    target_lm_head: Tensor,
    batch: TrainingBatch,
    steps_ahead: int,
    loss: LossKind = "soft",
) -> list[StepResult]:
    """Runs the head `steps_ahead` steps on its own states.

    Args:
        head: the head being trained.
        embedding: [target vocabulary, hidden], the target's frozen embeddings.
        target_lm_head: [draft vocabulary, target hidden], the target's own rows for the draft vocabulary.
        loss: what is minimised at each step (training/losses.py).

    Returns:
        one result a step; combine the losses with 0.8^k (`total_loss`).

    Raises:
        ValueError: nothing in the batch is supervised.
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
        attended = attend_to_steps(queries, keys, values, diagonal_keys, diagonal_values, slots.mask)
        output = head.finish(head.residual(layer_input, hidden), attended.transpose(1, 2).flatten(2))
        results.append(_step_result(head, labels, batch, slots, output, step, loss))
        hidden = head.feedback(output)
    return results


def total_loss(results: list[StepResult], decay: float = 0.8, valid: Tensor | None = None) -> Tensor:
    """The weighted sum of the steps' losses, step k at `decay`^k, normalised by the weights.

    Args:
        valid: [steps], valid slots of a whole update of which these results are a part; the parts' losses then add up
            to the loss that the update would have in one piece. None takes the results as the whole.
    """
    total, weights = torch.zeros((), device=results[0].loss.device), 0.0
    for step, result in enumerate(results):
        share: Tensor | float = 1.0
        if valid is not None:
            own = result.slots if result.valid is None else result.valid
            share = own / valid[step].clamp_min(1)
        total = total + decay**step * share * result.loss
        weights += decay**step
    return total / weights


def valid_slots(batch: TrainingBatch, in_draft_vocabulary: Tensor, steps_ahead: int) -> Tensor:
    """How many slots each step's loss is a mean of, int64 [steps].

    Args:
        in_draft_vocabulary: bool [target vocabulary].
    """
    written = batch.answer.long().cumsum(-1)
    known = in_draft_vocabulary[batch.choice]
    counts = []
    for step in range(steps_ahead):
        reach = step + 2
        supervised = written[:, reach:] - written[:, :-reach] == reach
        counts.append((supervised & known[:, reach - 1 : -1]).sum())
    return torch.stack(counts)


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
    kind: LossKind,
) -> StepResult:
    target_probabilities, target_row = labels
    reach = step + 2
    in_range = slots.columns + reach < batch.tokens.shape[1]
    rows, columns = slots.rows[in_range], slots.columns[in_range]
    written = batch.answer.long().cumsum(-1)
    unbroken = written[rows, columns + reach] - written[rows, columns] == reach
    rows, columns = rows[unbroken], columns[unbroken]
    if not len(rows):
        zero = output.sum() * 0
        return StepResult(zero, zero.detach(), 0, rows.new_zeros(()))
    logits = head.logits(output[rows, columns - slots.first])
    choice = batch.choice[rows, columns + reach - 1]
    known = head.t2d[choice]
    target = target_probabilities[target_row[rows, columns + reach - 1]].to(logits.dtype)
    draft_choice = _draft_ids(head, choice) if kind == "hard" else choice
    loss = (token_losses(kind, logits, target, draft_choice) * known).sum() / known.sum().clamp_min(1)
    with torch.no_grad():
        matches = (head.target_ids(logits.argmax(-1)) == choice).sum()
    return StepResult(loss, matches, len(rows), known.sum())


def _draft_ids(head: Eagle3Head, target_ids: Tensor) -> Tensor:
    """Target ids to draft ids, any shape; 0 for those that the draft vocabulary lacks."""
    ids = head.target_ids(torch.arange(head.config.draft_vocab_size, device=target_ids.device))
    table = torch.zeros(head.config.vocab_size, dtype=torch.long, device=target_ids.device)
    table[ids] = torch.arange(len(ids), device=target_ids.device)
    return table[target_ids]
