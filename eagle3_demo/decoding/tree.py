"""The draft tree: tokens a head proposes after the root, parents before children.

Node 0 is the root: the last token that was emitted but not yet run through the target. Every other node's ancestors are
in the tree (ancestor-closed), and siblings carry different tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Tokens, parents and log-probabilities by node.

    Attributes:
        tokens: token ids; `tokens[0]` is the root's.
        parents: parent index of each node, -1 for the root; always smaller than the node's own index.
        log_probabilities: the head's log-probability of a node given its parent; 0 for the root.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    log_probabilities: tuple[float, ...]

    @classmethod
    def root(cls, token: int) -> DraftTree:
        """A tree of nothing but its root: plain decoding."""
        return cls((token,), (-1,), (0.0,))

    def __len__(self) -> int:
        return len(self.tokens)

    def depths(self) -> list[int]:
        """Depth of each node; the root's is 0."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def mask(self) -> Tensor:
        """Bool [n, n]: node i sees node j iff j is i or an ancestor of i."""
        rows: list[list[bool]] = []
        for node, parent in enumerate(self.parents):
            row = [False] * len(self) if parent < 0 else rows[parent].copy()
            row[node] = True
            rows.append(row)
        return torch.tensor(rows, dtype=torch.bool)

    def children(self) -> list[dict[int, int]]:
        """For each node its children by token: {token: node}."""
        children: list[dict[int, int]] = [{} for _ in self.tokens]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent][self.tokens[node]] = node
        return children

    def tokens_along(self, path: Sequence[int]) -> list[int]:
        """Tokens of the nodes of a path."""
        return [self.tokens[node] for node in path]
