"""Expand and rerank: how a draft tree grows (EAGLE-2's dynamic tree, eagle3_reference.md 4.2).

Level by level the `top_k` most probable nodes are expanded and each gives its `top_k` most probable children; then the
most probable candidates of all levels become the tree. Scores are cumulative log-probabilities over the draft
vocabulary at temperature 1, so they fall along every path and the best set is ancestor-closed; ties keep the earlier,
which is the ancestor.

The draft reads nothing of the verifier's noise: the tree is a function of the text so far, which keeps acceptance exact
at every temperature (performance_reference.md 2.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.models.draft_head import DraftHead
from eagle3_demo.models.head import HeadSession
from eagle3_demo.settings import TreeSettings


@dataclass(slots=True)
class _Pool:
    """Every candidate of every level. `parents` are pool indices, -1 for children of the root."""

    tokens: list[int]
    parents: list[int]
    log_probabilities: list[float]
    scores: list[float]

    def add(self, tokens: Tensor, log_probabilities: Tensor, parents: list[int], scores: list[float]) -> None:
        """Takes the children [w, k] of w expanded nodes with their parents' pool indices and scores."""
        width = tokens.shape[1]
        self.tokens += tokens.flatten().tolist()
        new = log_probabilities.flatten().tolist()
        self.log_probabilities += new
        self.parents += [parent for parent in parents for _ in range(width)]
        self.scores += [value + scores[row // width] for row, value in enumerate(new)]

    def best(self, count: int, start: int = 0) -> list[int]:
        """Pool indices of the best candidates from `start` on, best first, ties in pool order."""
        return sorted(range(start, len(self.tokens)), key=lambda index: (-self.scores[index], index))[:count]


def draft_tree(
    head: DraftHead,
    session: HeadSession,
    embed: Callable[[Tensor], Tensor],
    root_token: int,
    state: Tensor,
    settings: TreeSettings,
) -> DraftTree:
    """Grows a draft tree below the root.

    Args:
        session: the draft cache, extended up to the token before the root's successor.
        embed: target ids int64 [n] to embeddings [n, hidden].
        root_token: the last emitted token.
        state: [hidden], the head's output at the last real slot, before the final norm.
        settings: depth, children per node, nodes with the root.
    """
    pool = _Pool([], [], [], [])
    tokens, log_probabilities = _children(head, state[None], settings.top_k)
    pool.add(tokens, log_probabilities, [-1], [0.0])
    frontier_start = 0
    hidden = head.feedback(state)[None]
    parent_rows = [0] * len(pool.tokens)
    seen: list[list[int]] = []
    row_of: dict[int, int] = {}
    for level in range(settings.depth - 1):
        frontier = pool.best(settings.top_k, frontier_start)
        offset = len(seen)
        for row, index in enumerate(frontier, offset):
            parent = row_of.get(pool.parents[index])
            seen.append([row] if parent is None else [*seen[parent], row])
        rows, ids = torch.tensor(
            [[parent_rows[index - frontier_start] for index in frontier], [pool.tokens[index] for index in frontier]],
            device=state.device,
        )
        visible = _visibility(seen[offset:], len(seen)).to(state.device)
        output = session.expand(embed(ids), hidden[rows], level, visible, offset)
        row_of |= {index: offset + row for row, index in enumerate(frontier)}
        tokens, log_probabilities = _children(head, output, settings.top_k)
        frontier_start = len(pool.tokens)
        pool.add(tokens, log_probabilities, frontier, [pool.scores[index] for index in frontier])
        hidden = head.feedback(output)
        parent_rows = [row for row in range(len(frontier)) for _ in range(tokens.shape[1])]
    return _select(pool, root_token, settings.nodes - 1)


def _children(head: DraftHead, output: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The most probable next tokens of each row: target ids and log-probabilities, each [rows, count]."""
    logits = head.logits(output).float()
    top = logits.topk(min(count, logits.shape[-1]), -1)
    return head.target_ids(top.indices), top.values - logits.logsumexp(-1, keepdim=True)


def _visibility(seen: list[list[int]], width: int) -> Tensor:
    """Bool [n, width] from the drafted rows that each of n rows sees."""
    rows = [[False] * width for _ in seen]
    for row, others in zip(rows, seen, strict=True):
        for other in others:
            row[other] = True
    return torch.tensor(rows, dtype=torch.bool)


def _select(pool: _Pool, root_token: int, count: int) -> DraftTree:
    """The best candidates in pool order, so that parents come before children."""
    chosen = sorted(pool.best(count))
    node_of = {index: node for node, index in enumerate(chosen, 1)} | {-1: 0}
    return DraftTree(
        tokens=(root_token, *(pool.tokens[index] for index in chosen)),
        parents=(-1, *(node_of[pool.parents[index]] for index in chosen)),
        log_probabilities=(0.0, *(pool.log_probabilities[index] for index in chosen)),
    )
