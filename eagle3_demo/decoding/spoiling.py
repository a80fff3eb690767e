"""A draft head made worse on purpose: to see that a bad head costs speed and never changes the answer."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from eagle3_demo.decoding.tree import DraftTree


def spoil(tree: DraftTree, share: float, position: int) -> DraftTree:
    """The tree with a share of its guesses replaced by wrong tokens; siblings stay different from each other.

    Args:
        share: of the guesses, 0 to 1.
        position: of the root; with the node's index it decides which guesses are hit, the same way every time.
    """
    if not share:
        return tree
    tokens = list(tree.tokens)
    for node in range(1, len(tokens)):
        if random.Random(f"{position} {node}").random() < share:
            taken = {tokens[other] for other, parent in enumerate(tree.parents) if parent == tree.parents[node]}
            nearby = itertools.chain(range(tokens[node] - 1, -1, -1), itertools.count(tokens[node] + 1))
            tokens[node] = next(token for token in nearby if token not in taken)
    return replace(tree, tokens=tuple(tokens))
