"""What the target thought of each drafted token, for people who look at a tree. Runs outside the step's clock."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3_demo.decoding.tree import DraftTree

TOP = 5
"""Tokens of the target's own list."""


@torch.inference_mode()
def target_log_probabilities(tree: DraftTree, target_token: int, path: Sequence[int], logits: Tensor) -> list[float]:
    """The target's log-probability of each node given its parent, before temperature and nucleus.

    Args:
        target_token: the target's own token, after the last accepted node.
        path: the accepted nodes.
        logits: [nodes, V], the target's at every node.

    Returns:
        One value a node (0 for the root), and one more for the target's own token.
    """
    rows = logits.reshape(len(tree), -1).float()
    last = path[-1] if path else 0
    parents = torch.tensor([*tree.parents[1:], last], device=rows.device)
    tokens = torch.tensor([*tree.tokens[1:], target_token], device=rows.device)
    values = rows[parents, tokens] - rows.logsumexp(-1)[parents]
    return [0.0, *values.tolist()]


@torch.inference_mode()
def likeliest(path: Sequence[int], logits: Tensor, nodes: int) -> list[list[tuple[int, float]]]:
    """The target's likeliest next tokens with log-probabilities, at the root and at each accepted node.

    Args:
        path: the accepted nodes.
        logits: [nodes, V], the target's at every node.
        nodes: size of the tree.
    """
    rows = logits.reshape(nodes, -1)[[0, *path]].float()
    values, tokens = rows.topk(min(TOP, rows.shape[-1]))
    values = values - rows.logsumexp(-1, keepdim=True)
    return [
        list(zip(some_tokens, some_values, strict=True))
        for some_tokens, some_values in zip(tokens.tolist(), values.tolist(), strict=True)
    ]
