"""How a draft tree grows: level by level from the head, then cut to what is verified.

`draft_tree` is EAGLE-2's expand and rerank (eagle3_reference.md 4.2): on each level the `top_k` most probable nodes are
expanded and each gives its `top_k` most probable children; then the most probable candidates of all levels become the
tree. Scores are cumulative log-probabilities over the draft vocabulary at temperature 1, so they fall along every path
and the best set is ancestor-closed; ties keep the earlier, which is the ancestor.

`draft_by_cost` grows the same way but stops and cuts where another level or node costs more than it brings
(decoding/tree_choice).

The draft reads nothing of the verifier's noise: the tree is a function of the text so far and of how earlier rounds
went, which keeps acceptance exact at every temperature (performance_reference.md 2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.decoding.tree_choice import TreeChooser
from eagle3_demo.models.draft_head import DraftHead
from eagle3_demo.models.head import HeadSession
from eagle3_demo.settings import TreeSettings


class Growth:
    """Candidates of a growing tree, by index; `parents` are indices, -1 for children of the root.

    Args:
        session: the draft cache, extended up to the token before the root's successor.
        embed: target ids int64 [n] to embeddings [n, hidden].
        state: [hidden], the head's output at the last real slot, before the final norm.
        width: children of each expanded node.

    Attributes:
        tokens, parents, depths, log_probabilities: of each candidate.
        level_start: index of the newest level's first candidate.
    """

    def __init__(
        self, head: DraftHead, session: HeadSession, embed: Callable[[Tensor], Tensor], state: Tensor, width: int
    ) -> None:
        self._head, self._session, self._embed, self._width = head, session, embed, width
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.log_probabilities: list[float] = []
        self.level_start = 0
        self._seen: list[list[int]] = []
        self._row_of: dict[int, int] = {}
        self._hidden = head.feedback(state)[None]
        self._add(state[None], [-1], 1)

    def expand(self, frontier: list[int]) -> None:
        """Runs the head over candidates of the newest level and adds their children as the next."""
        head, offset = self._head, len(self._seen)
        for row, index in enumerate(frontier, offset):
            parent = self._row_of.get(self.parents[index])
            self._seen.append([row] if parent is None else [*self._seen[parent], row])
        # Candidates of a level stand in rows of `width`, a row for each node that was expanded for it.
        parent_rows = [(index - self.level_start) // self._width for index in frontier]
        rows, ids = torch.tensor([parent_rows, [self.tokens[index] for index in frontier]], device=self._hidden.device)
        visible = _visibility(self._seen[offset:], len(self._seen)).to(self._hidden.device)
        level = self.depths[frontier[0]]
        output = self._session.expand(self._embed(ids), self._hidden[rows], level - 1, visible, offset)
        self._row_of |= {index: offset + row for row, index in enumerate(frontier)}
        self._hidden = head.feedback(output)
        self.level_start = len(self.tokens)
        self._add(output, frontier, level + 1)

    def tree(self, root_token: int, chosen: Iterable[int]) -> DraftTree:
        """The tree of an ancestor-closed set of candidates, in their order, so that parents come before children."""
        indices = sorted(chosen)
        node_of = {index: node for node, index in enumerate(indices, 1)} | {-1: 0}
        return DraftTree(
            tokens=(root_token, *(self.tokens[index] for index in indices)),
            parents=(-1, *(node_of[self.parents[index]] for index in indices)),
            log_probabilities=(0.0, *(self.log_probabilities[index] for index in indices)),
        )

    def _add(self, output: Tensor, parents: list[int], depth: int) -> None:
        """Adds the most probable next tokens of each row, with their log-probabilities."""
        logits = self._head.logits(output).float()
        self._width = min(self._width, logits.shape[-1])
        top = logits.topk(self._width, -1)
        self.tokens += self._head.target_ids(top.indices).flatten().tolist()
        self.log_probabilities += (top.values - logits.logsumexp(-1, keepdim=True)).flatten().tolist()
        self.parents += [parent for parent in parents for _ in range(self._width)]
        self.depths += [depth] * (len(parents) * self._width)


def draft_tree(growth: Growth, root_token: int, settings: TreeSettings, depth: int) -> DraftTree:
    """Grows `depth` levels and keeps the most probable nodes.

    Args:
        settings: `top_k` and `nodes`, the root included; `nodes` is a number.
    """
    assert settings.nodes != "auto"
    scores: list[float] = []

    def best(count: int, start: int = 0) -> list[int]:
        """The best candidates from `start` on, best first, ties in order."""
        for index in range(len(scores), len(growth.tokens)):
            parent = growth.parents[index]
            scores.append(growth.log_probabilities[index] + (scores[parent] if parent >= 0 else 0.0))
        return sorted(range(start, len(scores)), key=lambda index: (-scores[index], index))[:count]

    for _ in range(depth - 1):
        growth.expand(best(settings.top_k, growth.level_start))
    return growth.tree(root_token, best(settings.nodes - 1))


def draft_by_cost(
    growth: Growth, root_token: int, chooser: TreeChooser, settings: TreeSettings, depth: int
) -> DraftTree:
    """Grows levels and keeps nodes as long as they are worth their time.

    Args:
        settings: `top_k`, the most nodes expanded on a level.
        depth: the most levels.
    """
    chances: list[float] = []

    def estimate() -> None:
        for index in range(len(chances), len(growth.tokens)):
            parent = growth.parents[index]
            chance = chooser.chance(growth.depths[index], growth.log_probabilities[index])
            chances.append(chance * (chances[parent] if parent >= 0 else 1.0))

    estimate()
    for level in range(2, depth + 1):
        newest = range(growth.level_start, len(chances))
        frontier = sorted(newest, key=lambda index: (-chances[index], index))[: settings.top_k]
        frontier = chooser.worth_expanding(frontier, chances, level)
        if not frontier:
            break
        growth.expand(frontier)
        estimate()
    order = sorted(range(len(chances)), key=lambda index: (-chances[index], index))
    count = chooser.worth_verifying([chances[index] for index in order])
    return growth.tree(root_token, order[:count])


def _visibility(seen: list[list[int]], width: int) -> Tensor:
    """Bool [n, width] from the drafted rows that each of n rows sees."""
    rows = [[False] * width for _ in seen]
    for row, others in zip(rows, seen, strict=True):
        for other in others:
            row[other] = True
    return torch.tensor(rows, dtype=torch.bool)
