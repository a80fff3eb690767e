"""The right tree, chosen by cost: how many levels to draft and how many nodes to verify in each round.

The rule (performance_reference.md section 5): tokens have one price, the time that a token takes now. A node joins the
tree if its chance of being accepted is worth more than the verification time it adds; a level is drafted if what it may
add is worth more than its draft time; where speculation loses to plain decoding, nothing is drafted for a while.

Chances are learned: the head's own probability, calibrated by how often drafted tokens of that depth and confidence
were accepted. Times are measured once (decoding/tree_costs) and then follow what served rounds take. Choices look at
the past of a text only, never at the draws of the round they are made for, so sampling stays exact.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.decoding.tree_costs import TreeCosts

MOST_NODES = 32
_BINS = 8
_PRIOR_WEIGHT = 6.0
_WINDOW = 24
"""Rounds over which a request's own speed is averaged."""
_TRIAL = 12
"""Rounds of speculation before it is judged, and of each later trial."""
_REST = 96
"""Tokens decoded plainly before speculation is tried again."""


class Acceptance:
    """How often drafted tokens are accepted, given that their parents were, by depth and the head's own probability.

    Starts from a prior that believes the head a little less with each level.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def chance(self, depth: int, log_probability: float) -> float:
        """Calibrated chance of one drafted token."""
        accepted, seen = self._counts[min(depth, _BINS), _bin(log_probability)]
        prior = min(0.97, math.exp(log_probability)) * 0.95**depth
        return (accepted + _PRIOR_WEIGHT * prior) / (seen + _PRIOR_WEIGHT)

    def learn(self, depth: int, log_probability: float, accepted: bool) -> None:
        """Takes what became of a drafted token whose parent was accepted; old rounds fade."""
        counts = self._counts[min(depth, _BINS), _bin(log_probability)]
        counts[0] = 0.995 * counts[0] + accepted
        counts[1] = 0.995 * counts[1] + 1.0


def _bin(log_probability: float) -> int:
    """Finer where the head is sure: probabilities 0 to 0.03, 0.06, 0.12, 0.25, 0.5, 0.75, 0.9, 1."""
    edges = (0.03, 0.06, 0.12, 0.25, 0.5, 0.75, 0.9)
    probability = math.exp(log_probability)
    return sum(probability >= edge for edge in edges)


@dataclass(slots=True)
class Knowledge:
    """What an engine has learnt about one head, shared by all its requests.

    Attributes:
        costs: times on this machine.
        greedy, sampled: acceptance at temperature 0 and above.
    """

    costs: TreeCosts
    greedy: Acceptance = field(default_factory=Acceptance)
    sampled: Acceptance = field(default_factory=Acceptance)


class TreeChooser:
    """The choices of one request.

    Args:
        knowledge: shared with other requests, and taught by this one.
        greedy: whether the request decodes at temperature 0.

    Attributes:
        reason: in words, why the last tree is as it is.
    """

    def __init__(self, knowledge: Knowledge, greedy: bool) -> None:
        self._costs = knowledge.costs
        self._acceptance = knowledge.greedy if greedy else knowledge.sampled
        self._tokens = self._milliseconds = 0.0
        self._rounds = self._resting = 0
        self.reason = ""

    @property
    def price(self) -> float:
        """Tokens per millisecond of speculation now, never below plain decoding's."""
        return max(self._costs.plain_speed, self._tokens / self._milliseconds if self._milliseconds else 0.0)

    def rests(self) -> bool:
        """Whether this round is decoded plainly because drafting has not paid for itself lately."""
        if not self._resting:
            return False
        speed, plain = self._tokens / self._milliseconds, self._costs.plain_speed
        self.reason = (
            f"plain decoding: the last trees gave {1000 * speed:.0f} tokens/s where plain decoding gives "
            f"{1000 * plain:.0f}; next trial in {self._resting} tokens"
        )
        return True

    def chance(self, depth: int, log_probability: float) -> float:
        """Chance that a drafted token is accepted once its parent is."""
        return self._acceptance.chance(depth, log_probability)

    def worth_expanding(self, frontier: list[int], chances: list[float], level: int) -> list[int]:
        """The nodes, best first, whose children may pay for their verification; none if not for the draft either.

        Args:
            frontier: candidates of the level above `level`, best first.
            chances: of every candidate so far.
        """
        price, costs = self.price, self._costs
        ranked = sorted(chances, reverse=True)
        size = 1 + sum(chance > price * costs.verify_step(count) for count, chance in enumerate(ranked, 1))
        step = price * costs.verify_step(size)
        follow = self.chance(level, math.log(0.7))
        paying = [index for index in frontier if chances[index] * follow > step]
        gain = sum(chances[index] * follow - step for index in paying)
        return paying if gain > price * costs.level else []

    def worth_verifying(self, chances: list[float]) -> int:
        """How many candidates to verify beside the root.

        Args:
            chances: of all candidates, best first.
        """
        price, costs = self.price, self._costs
        best, best_value, value = 0, 0.0, 0.0
        for count, chance in enumerate(chances[: MOST_NODES - 1], 1):
            value += chance - price * costs.verify_step(count)
            if value > best_value:
                best, best_value = count, value
        added = costs.verify_step(best + 1)
        following = f"{chances[best]:.2f} tokens" if best < len(chances) else "nothing, none was drafted"
        self.reason = (
            f"{best + 1} node{'s' if best else ''}: one more costs {added:.1f} ms, which is {price * added:.2f} tokens "
            f"at this speed, and is worth {following}"
        )
        return best

    def served(self, tree: DraftTree, path: tuple[int, ...], drafted: bool, draft: float, verify: float) -> None:
        """Takes how a round went.

        Args:
            path: the accepted nodes.
            drafted: whether the head ran; false for a round of rest.
            draft, verify: milliseconds; what else the round took is in `verify`.
        """
        self._costs.served(len(tree), verify)
        if not drafted:
            self._resting = max(0, self._resting - 1)
            if not self._resting:
                self._rounds = 0
            return
        standing = {0, *path}
        for node, depth in enumerate(tree.depths()):
            if node and tree.parents[node] in standing:
                self._acceptance.learn(depth, tree.log_probabilities[node], node in standing)
        if not self._rounds:
            self._tokens = self._milliseconds = 0.0
        self._rounds += 1
        keep = 1 - 1 / _WINDOW
        self._tokens = keep * self._tokens + len(path) + 1
        self._milliseconds = keep * self._milliseconds + draft + verify
        if self._rounds >= _TRIAL and self._tokens / self._milliseconds < self._costs.plain_speed:
            self._resting = _REST
