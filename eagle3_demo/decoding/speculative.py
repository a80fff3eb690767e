"""The speculative loop, whichever head drafts: draft a tree, verify it in one target forward, accept, commit, repeat.

Every round the head's cache is first extended by the accepted tokens with their real target features; rows made from
drafted states are overwritten (eagle3_reference.md 4.6).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from eagle3_demo.decoding.drafting import Growth, draft_by_cost, draft_tree
from eagle3_demo.decoding.events import StepEvent
from eagle3_demo.decoding.spoiling import spoil
from eagle3_demo.decoding.steps import StepWriter, prefill, token_budget
from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.decoding.tree_choice import Knowledge, TreeChooser
from eagle3_demo.decoding.tree_costs import measure_costs
from eagle3_demo.decoding.verification import accept
from eagle3_demo.models.draft_head import DraftHead
from eagle3_demo.models.head import HeadSession
from eagle3_demo.models.target import TargetModel
from eagle3_demo.progress import ReadingCallback
from eagle3_demo.settings import GenerationSettings, TreeSettings


def decode_speculatively(
    target: TargetModel,
    head: DraftHead,
    prompt_ids: Sequence[int],
    settings: GenerationSettings,
    cancelled: Callable[[], bool] = lambda: False,
    reading: ReadingCallback | None = None,
    knowledge: Knowledge | None = None,
) -> Generator[StepEvent, None, None]:
    """Decodes with drafted trees; emits exactly what plain decoding emits.

    Past the head's own `max_position_embeddings` nothing is drafted and decoding goes on plainly (faults B18).

    Args:
        prompt_ids: at least one token.
        cancelled: asked once a step; the step that hears yes is the last.
        reading: told how far a long prompt is read.
        knowledge: what choosing trees by cost has learnt so far; only for `nodes = "auto"`.

    Yields:
        The prefill as step 0, then one event a target forward.

    Raises:
        UserError: the prompt is empty or does not fit the context.
    """
    budget = token_budget(target, prompt_ids, settings)
    writer = StepWriter(target, settings, budget, cancelled)
    session = target.session(len(prompt_ids) + budget, head.taps(target.default_taps))
    chooser = None
    if settings.tree.nodes == "auto":
        knowledge = knowledge or Knowledge(measure_costs(target, head))
        if settings.tree.spoiled:
            # What a head that was made worse teaches is not true of the head.
            knowledge = Knowledge(knowledge.costs)
        chooser = TreeChooser(knowledge, settings.sampling.greedy)
    drafter = Drafter(target, head, len(prompt_ids) + budget, settings.tree, chooser)
    try:
        tree, verdict, output = prefill(session, writer, prompt_ids, reading)
        drafter.learn([*prompt_ids[1:], verdict.target_token], output.taps)
        yield writer.event(tree, verdict, session.length, drafter.length, output.logits)
        while writer.stop_reason is None:
            with writer.clock.measure("draft"):
                tree = drafter.draft(verdict.target_token, writer.remaining)
            with writer.clock.measure("verify"):
                output = session.verify(*_tensors(tree, target.device))
                verdict = accept(tree, output.logits, session.length, settings.sampling)
            with writer.clock.measure("commit"):
                kept = writer.take(tree, verdict)
                session.commit(kept)
                drafter.learn([*tree.tokens_along(verdict.path), verdict.target_token], output.taps, kept)
            if chooser is not None:
                clock, drafted = writer.clock, drafter.drafted
                chooser.served(tree, verdict.path, drafted, 1000 * clock.draft, 1000 * (clock.verify + clock.commit))
            choice = chooser.reason if chooser is not None else ""
            yield writer.event(tree, verdict, session.length, drafter.length, output.logits, choice)
    finally:
        session.close()


class Drafter:
    """The head's side of one request: what the target has accepted goes in, draft trees come out.

    Args:
        capacity: positions the request may reach.
        settings: the tree's shape.
        chooser: chooses it by cost; None for a tree of fixed shape.

    Attributes:
        drafted: whether the head ran for the last tree.
    """

    def __init__(
        self,
        target: TargetModel,
        head: DraftHead,
        capacity: int,
        settings: TreeSettings,
        chooser: TreeChooser | None = None,
    ) -> None:
        self._embed: Callable[[Tensor], Tensor] = getattr(head, "embed_tokens", target.embed)
        self._head, self._settings, self._device = head, settings, target.device
        self._session = HeadSession(head, capacity + settings.depth * settings.top_k)
        self._chooser = chooser
        self._full = False
        self.drafted = False
        self._tokens: list[int] = []
        self._taps: list[Tensor] = []

    @property
    def length(self) -> int:
        """Positions with real target features, those learnt since the last draft included."""
        return self._session.length + len(self._tokens)

    def learn(self, tokens: Sequence[int], taps: Tensor | None, rows: Sequence[int] | None = None) -> None:
        """Remembers features for the next draft, which is when the head runs over them.

        Args:
            tokens: the token that follows each feature.
            taps: [n, taps * target hidden].
            rows: the features to take, in order; None takes all.
        """
        assert taps is not None
        if self._full:
            return
        if rows is not None:
            taps = taps[list(rows)]
        self._tokens += tokens[: len(taps)]
        self._taps.append(taps)

    @torch.inference_mode()
    def draft(self, root_token: int, remaining: int) -> DraftTree:
        """A tree below the last emitted token, no deeper than what may still be emitted."""
        room = self._head.config.max_position_embeddings - self.length
        self._full = self._full or room < 1
        depth = 0 if self._full else min(self._settings.depth, remaining - 1, room)
        if depth < 1 and self._chooser is not None:
            self._chooser.reason = "a root alone: there is no room for a guess"
        self.drafted = depth >= 1 and (self._chooser is None or not self._chooser.rests())
        if not self.drafted:
            return DraftTree.root(root_token)
        state = self._session.extend(self._embed(self._ids(self._tokens)), torch.cat(self._taps))
        self._tokens, self._taps = [], []
        growth = Growth(self._head, self._session, self._embed, state, self._settings.top_k)
        if self._chooser is None:
            tree = draft_tree(growth, root_token, self._settings, depth)
        else:
            tree = draft_by_cost(growth, root_token, self._chooser, self._settings, depth)
        return spoil(tree, self._settings.spoiled, self._session.length)

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens, device=self._device)


def _tensors(tree: DraftTree, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens, depths and mask of a tree as the target's `verify` takes them."""
    tokens, depths = (torch.tensor(values, device=device) for values in (tree.tokens, tree.depths()))
    return tokens, depths, tree.mask().to(device) if len(tree) > 1 else None
