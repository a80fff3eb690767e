"""What every decoding loop does alike: the token budget, the time of each part, and the events it tells.

A loop makes one `StepWriter`, hands it each verdict, commits the nodes it says and yields the event it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Literal

from torch import Tensor

from eagle3_demo.decoding.events import StepEvent, StopReason, TreeRecord
from eagle3_demo.decoding.insight import likeliest, target_log_probabilities
from eagle3_demo.decoding.sampling import pick
from eagle3_demo.decoding.stopping import Fed, StopWatcher
from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.decoding.verification import Verdict, node_statuses
from eagle3_demo.errors import UserError
from eagle3_demo.models.session import TargetOutput, TargetSession
from eagle3_demo.models.target import TargetModel
from eagle3_demo.progress import ReadingCallback
from eagle3_demo.settings import GenerationSettings


def token_budget(target: TargetModel, prompt_ids: Sequence[int], settings: GenerationSettings) -> int:
    """New tokens a request may have: what it asks for, or what its prompt leaves of the context.

    Raises:
        UserError: the prompt is empty or leaves no room.
    """
    if not prompt_ids:
        raise UserError("the prompt has no tokens; type something to answer")
    room = target.max_context - len(prompt_ids)
    if room < 1:
        raise UserError(
            f"the prompt has {len(prompt_ids)} tokens and {target.name} has a context of {target.max_context}; "
            "shorten the prompt or start a new conversation"
        )
    return min(settings.max_new_tokens, room)


@dataclass(slots=True)
class StepClock:
    """Engine seconds of one step by part; a part may be measured several times."""

    draft: float = 0.0
    verify: float = 0.0
    commit: float = 0.0

    @contextmanager
    def measure(self, part: Literal["draft", "verify", "commit"]) -> Iterator[None]:
        """Adds the time of the block to a part."""
        start = perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + perf_counter() - start)


@dataclass(slots=True)
class StepWriter:
    """Turns verdicts into events, cut where the answer ends.

    Attributes:
        budget: see `token_budget`.
        cancelled: asked once a step.
        clock: the current step's times.
        stop_reason: set once the answer has ended.
    """

    target: TargetModel
    settings: GenerationSettings
    budget: int
    cancelled: Callable[[], bool]
    clock: StepClock = field(default_factory=StepClock)
    stop_reason: StopReason | None = None
    _index: int = 0
    _watcher: StopWatcher = field(init=False)
    _fed: Fed = field(init=False)

    def __post_init__(self) -> None:
        self._watcher = StopWatcher(self.target.tokenizer, self.target.end_tokens, self.settings.stop, self.budget)

    @property
    def remaining(self) -> int:
        """Tokens the request may still emit; a tree deeper than `remaining - 1` drafts in vain."""
        return self._watcher.remaining

    def take(self, tree: DraftTree, verdict: Verdict) -> list[int]:
        """Takes a verdict and decides where the answer ends.

        Returns:
            The nodes to commit, root first: of every emitted token the one it followed. An end token, and what was
            accepted after it, stays out of the caches (faults B04).
        """
        drafted = [(token, True) for token in tree.tokens_along(verdict.path)]
        self._fed = self._watcher.feed([*drafted, (verdict.target_token, False)])
        self.stop_reason = self._fed.stop_reason
        if self.stop_reason == "length" and self.budget < self.settings.max_new_tokens:
            self.stop_reason = "context"
        return [0, *verdict.path][: len(self._fed.tokens)]

    def event(
        self,
        tree: DraftTree,
        verdict: Verdict,
        target_length: int,
        draft_length: int,
        logits: Tensor,
        choice: str = "",
    ) -> StepEvent:
        """The event of the verdict that was taken last; starts the next step's clock.

        Args:
            logits: [nodes, V], the target's at every node of the tree.
            choice: see `StepEvent`.
        """
        text = self._fed.text
        if self.stop_reason is None and self.cancelled():
            self.stop_reason = "cancelled"
            text += self._watcher.finish()
        event = StepEvent(
            index=self._index,
            tree=self._record(tree, verdict, logits),
            tokens=self._fed.tokens,
            text=text,
            seconds_draft=self.clock.draft,
            seconds_verify=self.clock.verify,
            seconds_commit=self.clock.commit,
            target_cache_length=target_length,
            draft_cache_length=draft_length,
            stop_reason=self.stop_reason,
            choice=choice,
        )
        self._index += 1
        self.clock = StepClock()
        return event

    def _record(self, tree: DraftTree, verdict: Verdict, logits: Tensor) -> TreeRecord:
        emitted = len(self._fed.tokens)
        statuses = list(node_statuses(tree, verdict.path))
        for node in verdict.path[emitted:]:
            statuses[node] = "unreached"
        record = TreeRecord(
            tokens=tree.tokens,
            texts=tuple(self.target.token_text(token) for token in tree.tokens),
            parents=tree.parents,
            log_probabilities=tree.log_probabilities,
            statuses=tuple(statuses),
            path=verdict.path[:emitted],
            target_token=verdict.target_token,
            target_text=self.target.token_text(verdict.target_token),
        )
        if not self.settings.explain:
            return record
        tops = likeliest(record.path, logits, len(tree))
        return replace(
            record,
            target_log_probabilities=tuple(
                target_log_probabilities(tree, verdict.target_token, verdict.path, logits),
            ),
            target_tops=tuple(tuple((self.target.token_text(token), value) for token, value in top) for top in tops),
        )


def prefill(
    session: TargetSession, writer: StepWriter, prompt_ids: Sequence[int], reading: ReadingCallback | None
) -> tuple[DraftTree, Verdict, TargetOutput]:
    """Step 0 of every loop: the target reads the prompt and picks the first token; the writer takes it.

    Args:
        reading: see `TargetSession.prefill`.

    Returns:
        The tree that step 0 tells of, a lone root; the verdict with the first token; the target's output.
    """
    with writer.clock.measure("verify"):
        output = session.prefill(prompt_ids, reading)
        token = pick(output.logits, session.length, writer.settings.sampling)
    tree, verdict = DraftTree.root(prompt_ids[-1]), Verdict((), token)
    with writer.clock.measure("commit"):
        writer.take(tree, verdict)
    return tree, verdict, output
