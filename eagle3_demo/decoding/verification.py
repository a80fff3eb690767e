"""Which drafted tokens stand: sample, then match (performance_reference.md 2.3).

At each node the token is taken that plain decoding would emit there — the argmax, or a draw whose noise is keyed by the
request's seed and the absolute position — and the walk descends while that token is a child. The emitted tokens are
plain decoding's own, one by one, whatever the tree holds: exact for every tree, and for a deterministic tree no exact
rule accepts more.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from eagle3_demo.decoding.events import NodeStatus
from eagle3_demo.decoding.sampling import pick
from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.settings import SamplingSettings


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accepted path and the target's own next token.

    Attributes:
        path: accepted nodes from the root's child downwards.
        target_token: what the target emits after the last accepted node; next round's root.
    """

    path: tuple[int, ...]
    target_token: int


def accept(tree: DraftTree, logits: Tensor, position: int, sampling: SamplingSettings) -> Verdict:
    """Walks down the tree.

    Args:
        logits: float32 [nodes, vocabulary], the target's at every node.
        position: absolute position of the root.
        sampling: the request's chain, the same that plain decoding uses.
    """
    children = tree.children()
    node = 0
    path: list[int] = []
    while True:
        token = pick(logits[node], position + len(path) + 1, sampling)
        child = children[node].get(token)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child


def node_statuses(tree: DraftTree, path: tuple[int, ...]) -> tuple[NodeStatus, ...]:
    """What became of each node; see `TreeRecord.statuses`."""
    standing = {0, *path}
    statuses: list[NodeStatus] = []
    for node, parent in enumerate(tree.parents):
        if node == 0:
            statuses.append("root")
        elif node in standing:
            statuses.append("accepted")
        else:
            statuses.append("rejected" if parent in standing else "unreached")
    return tuple(statuses)
