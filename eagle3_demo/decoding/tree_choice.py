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
_DEEPEST = 8
"""Levels below count as this one."""
_PRIOR_WEIGHT = 6.0
_WINDOW = 24
"""Rounds over which a request's own speed is averaged."""
_REMEMBERED = 4
"""Rounds that the speed of other requests, or of this one before a rest, counts for when drafting begins."""
_TRIAL = 4
"""Rounds of speculation before it is judged."""
_FIRST_REST, _LONGEST_REST = 24, 192
"""Tokens decoded plainly after a trial that lost; each one in a row doubles it."""


class Acceptance:
    """How often drafted tokens are accepted, given that their parents were, by depth and the head's own probability.

    Starts from a prior that believes the head a little less with each level.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def chance(self, depth: int, log_probability: float) -> float:
        """Calibrated chance of one drafted token."""
        accepted, seen = self._counts[min(depth, _DEEPEST), _bin(log_probability)]
        prior = min(0.97, math.exp(log_probability)) * 0.95**depth
        return (accepted + _PRIOR_WEIGHT * prior) / (seen + _PRIOR_WEIGHT)

    def learn(self, depth: int, log_probability: float, accepted: bool) -> None:
        """Takes what became of a drafted token whose parent was accepted; old rounds fade."""
        counts = self._counts[min(depth, _DEEPEST), _bin(log_probability)]
        counts[0] = 0.995 * counts[0] + accepted
        counts[1] = 0.995 * counts[1] + 1.0


def _bin(log_probability: float) -> int:
    """Finer where the head is sure: probabilities 0 to 0.03, 0.06, 0.12, 0.25, 0.5, 0.75, 0.9, 1."""
    edges = (0.03, 0.06, 0.12, 0.25, 0.5, 0.75, 0.9)
    probability = math.exp(log_probability)
    return sum(probability >= edge for edge in edges)


@dataclass(slots=True)
class Speed:
    """Tokens by time of the latest rounds of speculation, older ones fading."""

    tokens: float = 0.0
    milliseconds: float = 0.0

    def add(self, tokens: int, milliseconds: float, window: int) -> None:
        """Takes a round; `window` rounds count."""
        keep = 1 - 1 / window
        self.tokens = keep * self.tokens + tokens
        self.milliseconds = keep * self.milliseconds + milliseconds

    def remembered(self, milliseconds_a_round: float) -> Speed:
        """The same speed, as if only `_REMEMBERED` rounds had told of it."""
        share = min(1.0, _REMEMBERED * milliseconds_a_round / self.milliseconds) if self.milliseconds else 1.0
        return Speed(share * self.tokens, share * self.milliseconds)

    @property
    def rate(self) -> float:
        """Tokens per millisecond; 0 before any round."""
        return self.tokens / self.milliseconds if self.milliseconds else 0.0


@dataclass(slots=True)
class Experience:
    """What was learnt at temperature 0, or above it: chances of acceptance, and the speed of all requests' rounds."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    speed: Speed = field(default_factory=Speed)


@dataclass(slots=True)
class Knowledge:
    """What an engine has learnt about one head, shared by all its requests.

    Attributes:
        costs: times on this machine.
        greedy, sampled: experience at temperature 0 and above.
    """

    costs: TreeCosts
    greedy: Experience = field(default_factory=Experience)
    sampled: Experience = field(default_factory=Experience)


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
        self._experience = knowledge.greedy if greedy else knowledge.sampled
        self._speed = self._experience.speed.remembered(1 / self._costs.plain_speed)
        self._rounds = self._resting = 0
        self._rest = _FIRST_REST
        self.reason = ""

    @property
    def price(self) -> float:
        """Tokens per millisecond now, never below plain decoding's."""
        return max(self._costs.plain_speed, self._speed.rate)

    def rests(self) -> bool:
        """Whether this round is decoded plainly because drafting has not paid for itself lately."""
        if not self._resting:
            return False
        self.reason = (
            f"plain decoding: the last trees gave {1000 * self._speed.rate:.0f} tokens/s where plain decoding gives "
            f"{1000 * self._costs.plain_speed:.0f}; next trial in {self._resting} tokens"
        )
        return True

    def chance(self, depth: int, log_probability: float) -> float:
        """Chance that a drafted token is accepted once its parent is."""
        return self._experience.acceptance.chance(depth, log_probability)

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
            return
        standing = {0, *path}
        for node, depth in enumerate(tree.depths()):
            if node and tree.parents[node] in standing:
                self._experience.acceptance.learn(depth, tree.log_probabilities[node], node in standing)
        self._rounds += 1
        for speed, window in ((self._speed, _WINDOW), (self._experience.speed, 10 * _WINDOW)):
            speed.add(len(path) + 1, draft + verify, window)
        if self._rounds < _TRIAL:
            return
        if self._speed.rate < self._costs.plain_speed:
            self._resting, self._rest = self._rest, min(2 * self._rest, _LONGEST_REST)
            self._rounds = 0
            self._speed = self._speed.remembered(draft + verify)
        elif self._rounds > 2 * _TRIAL:
            self._rest = _FIRST_REST
