"""What a decoding run tells: plain frozen data, the same for every method, readable by page, benchmark and recorder.

Nothing here imports torch or gradio; every value pickles and becomes JSON through `dataclasses.asdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

NodeStatus = Literal["root", "accepted", "rejected", "unreached"]
StopReason = Literal["end_token", "stop_string", "length", "context", "cancelled"]


@dataclass(frozen=True, slots=True)
class TreeRecord:
    """One draft tree with its verdict, in node order: node 0 is the root, parents come before children.

    Attributes:
        tokens: token id of each node.
        texts: each node's token as text, for people.
        parents: parent index of each node, -1 for the root.
        log_probabilities: the draft head's log-probability of the node given its parent; 0 for the root.
        statuses: `root`: the last token that was already emitted; `accepted`: emitted by this step; `rejected`: its
            parent was accepted (or is the root) and the target chose otherwise; `unreached`: an ancestor was rejected.
        path: indices of the accepted nodes from the root's child downwards; empty when nothing was accepted.
        target_token: the target's own token after the last accepted node; it ends every step.
        target_text: that token as text.
        target_log_probabilities: the target's log-probability of each node given its parent, before temperature (0 for
            the root), and last that of its own token. Empty unless the request asks to `explain`.
        target_tops: at the root and at each accepted node the target's likeliest next tokens, as (text,
            log-probability). Empty unless the request asks to `explain`.
    """

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    parents: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    statuses: tuple[NodeStatus, ...]
    path: tuple[int, ...]
    target_token: int
    target_text: str
    target_log_probabilities: tuple[float, ...] = ()
    target_tops: tuple[tuple[tuple[str, float], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One emitted token: its id, its text as it adds to the answer, and whether the draft head proposed it."""

    id: int
    text: str
    drafted: bool


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One step of decoding: one target forward. Step 0 is the prefill; its tree has only a root.

    Attributes:
        index: 0 for the prefill, then 1, 2, ….
        tree: what was drafted and what became of it. Plain decoding has a tree of one node.
        tokens: the tokens emitted by this step, cut at the first stop and at the budget. The end-of-turn token counts
            as emitted and has an empty text.
        text: the answer's text added by this step (never half a character; may lag behind `tokens`).
        seconds_draft, seconds_verify, seconds_commit: engine time; the prefill's is in `seconds_verify`.
        target_cache_length, draft_cache_length: positions held after this step.
        stop_reason: set on the last step.
        choice: in words, why the tree has this shape; empty for a fixed shape.
    """

    index: int
    tree: TreeRecord
    tokens: tuple[TokenRecord, ...]
    text: str
    seconds_draft: float
    seconds_verify: float
    seconds_commit: float
    target_cache_length: int
    draft_cache_length: int
    stop_reason: StopReason | None = None
    choice: str = ""

    @property
    def seconds(self) -> float:
        """Engine time of the whole step."""
        return self.seconds_draft + self.seconds_verify + self.seconds_commit


@dataclass(frozen=True, slots=True)
class Speculation:
    """Whether speculation is active in a run, in words why or why not, and the name of the head that drafts."""

    active: bool
    reason: str
    head: str | None = None


@dataclass(slots=True)
class RunStatistics:
    """Running totals of one run, fed event by event.

    `acceptance_length` (tau) is tokens emitted per target forward after the prefill; 1.0 for plain decoding.
    `plain_steps` counts the target forwards that had no guess to check.
    `tokens_per_second` counts decode steps only: the prefill and its first token are outside.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    target_forwards: int = 0
    plain_steps: int = 0
    decode_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    seconds_prefill: float = 0.0
    seconds_draft: float = 0.0
    seconds_verify: float = 0.0
    seconds_commit: float = 0.0
    stop_reason: StopReason | None = None

    def add(self, event: StepEvent) -> None:
        """Takes one step into the totals."""
        self.token_ids += [token.id for token in event.tokens]
        self.text += event.text
        self.stop_reason = event.stop_reason or self.stop_reason
        if event.index == 0:
            self.seconds_prefill = event.seconds
            return
        self.target_forwards += 1
        self.plain_steps += len(event.tree.tokens) == 1
        self.decode_tokens += len(event.tokens)
        self.drafted_tokens += len(event.tree.tokens) - 1
        self.accepted_tokens += len(event.tree.path)
        self.seconds_draft += event.seconds_draft
        self.seconds_verify += event.seconds_verify
        self.seconds_commit += event.seconds_commit

    @property
    def new_tokens(self) -> int:
        """Tokens emitted, the prefill's first token included."""
        return len(self.token_ids)

    @property
    def seconds_decode(self) -> float:
        """Engine time after the prefill."""
        return self.seconds_draft + self.seconds_verify + self.seconds_commit

    @property
    def acceptance_length(self) -> float:
        """Tokens per target forward after the prefill; 1.0 before any."""
        return self.decode_tokens / self.target_forwards if self.target_forwards else 1.0

    @property
    def tokens_per_second(self) -> float:
        """Decode speed; 0.0 before the first decode step."""
        return self.decode_tokens / self.seconds_decode if self.seconds_decode else 0.0

    def told(self, speculation: Speculation) -> str:
        """In words, whether speculation was on and why, and how many steps went on plainly all the same."""
        if not speculation.active:
            return f"speculation off: {speculation.reason}"
        plain = f"; {self.plain_steps} of {self.target_forwards} steps plainly" if self.plain_steps else ""
        return f"speculation on: {speculation.reason}{plain}"

    def figures(self, speculation: Speculation) -> dict[str, Any]:
        """The run as JSON data, for every interface alike."""
        return {
            "text": self.text,
            "new_tokens": self.new_tokens,
            "target_forwards": self.target_forwards,
            "acceptance_length": round(self.acceptance_length, 3),
            "seconds_prefill": round(self.seconds_prefill, 4),
            "seconds_decode": round(self.seconds_decode, 4),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "stop_reason": self.stop_reason,
            "speculation": {
                "active": speculation.active,
                "reason": speculation.reason,
                "plain_steps": self.plain_steps,
            },
        }

    @classmethod
    def of(cls, events: Iterable[StepEvent]) -> RunStatistics:
        """The totals of a finished run."""
        statistics = cls()
        for event in events:
            statistics.add(event)
        return statistics


def compared(plain: RunStatistics, fast: RunStatistics) -> dict[str, Any]:
    """Two runs of one prompt beside each other, as JSON data; the speedup is None where one decoded nothing."""
    different = first_divergence(plain.token_ids, fast.token_ids)
    measured = plain.tokens_per_second and fast.tokens_per_second
    return {
        "identical": different is None,
        "first_divergence": different,
        "speedup": round(fast.tokens_per_second / plain.tokens_per_second, 3) if measured else None,
    }


def first_divergence(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first token in which two outputs differ, None when they are the same; the end counts as a token."""
    shared = min(len(left), len(right))
    different = next((index for index in range(shared) if left[index] != right[index]), shared)
    return None if different == len(left) == len(right) else different
