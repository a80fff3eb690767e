"""Plain decoding, one token a step: the baseline, with the target, cache and sampling that speculation has."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch

from eagle3_demo.decoding.events import StepEvent
from eagle3_demo.decoding.sampling import pick
from eagle3_demo.decoding.steps import StepWriter, token_budget
from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.decoding.verification import Verdict
from eagle3_demo.models.target import TargetModel
from eagle3_demo.settings import GenerationSettings


def decode_autoregressive(
    target: TargetModel,
    prompt_ids: Sequence[int],
    settings: GenerationSettings,
    cancelled: Callable[[], bool] = lambda: False,
) -> Generator[StepEvent, None, None]:
    """Decodes token by token.

    Args:
        prompt_ids: at least one token.
        cancelled: asked once a step; the step that hears yes is the last.

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
        with writer.clock.measure("verify"):
            output = session.prefill(prompt_ids)
            token = pick(output.logits, session.length, settings.sampling)
        tree, verdict = DraftTree.root(prompt_ids[-1]), Verdict((), token)
        with writer.clock.measure("commit"):
            writer.take(tree, verdict)
        yield writer.event(tree, verdict, session.length, 0, output.logits)
        while writer.stop_reason is None:
            tree = DraftTree.root(token)
            with writer.clock.measure("verify"):
                output = session.verify(torch.tensor([token], device=target.device), depth, None)
                token = pick(output.logits, session.length + 1, settings.sampling)
            verdict = Verdict((), token)
            with writer.clock.measure("commit"):
                session.commit(writer.take(tree, verdict))
            yield writer.event(tree, verdict, session.length, 0, output.logits)
    finally:
        session.close()
