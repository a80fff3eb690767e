"""Plain decoding, one token a step: the baseline, with the target, cache and sampling that speculation has."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch

from eagle3_demo.decoding.events import StepEvent
from eagle3_demo.decoding.sampling import pick
from eagle3_demo.decoding.steps import StepWriter, prefill, token_budget
from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.decoding.verification import Verdict
from eagle3_demo.models.target import TargetModel
from eagle3_demo.progress import ReadingCallback
from eagle3_demo.settings import GenerationSettings


def decode_autoregressive(
    target: TargetModel,
    prompt_ids: Sequence[int],
    settings: GenerationSettings,
    cancelled: Callable[[], bool] = lambda: False,
    reading: ReadingCallback | None = None,
) -> Generator[StepEvent, None, None]:
    """Decodes token by token.

    Args:
        prompt_ids: at least one token.
        cancelled: asked once a step; the step that hears yes is the last.
        reading: told how far a long prompt is read.

    Yields:
        The prefill as step 0, then one event a token; each tree is a lone root.

    Raises:
        UserError: the prompt is empty or does not fit the context.
    """
    budget = token_budget(target, prompt_ids, settings)
    writer = StepWriter(target, settings, budget, cancelled)
    session = target.session(len(prompt_ids) + budget)
    depth = torch.zeros(1, dtype=torch.long, device=target.device)
    try:
        tree, verdict, output = prefill(session, writer, prompt_ids, reading)
        yield writer.event(tree, verdict, session.length, 0, output.logits)
        while writer.stop_reason is None:
            last = verdict.target_token
            tree = DraftTree.root(last)
            with writer.clock.measure("verify"):
                output = session.verify(torch.tensor([last], device=target.device), depth, None)
                verdict = Verdict((), pick(output.logits, session.length + 1, settings.sampling))
            with writer.clock.measure("commit"):
                session.commit(writer.take(tree, verdict))
            yield writer.event(tree, verdict, session.length, 0, output.logits)
    finally:
        session.close()
