"""What the parts of a round cost on this machine: measured once, then following the served rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

from eagle3_demo.models.draft_head import DraftHead
from eagle3_demo.models.head import HeadSession
from eagle3_demo.models.target import TargetModel

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTEXT = 256
_REPEATS = 3


class TreeCosts:
    """Times in milliseconds.

    Args:
        verify: of a target forward over each of `WIDTHS` rows.
        level: of drafting one more level.
    """

    def __init__(self, verify: dict[int, float], level: float) -> None:
        self.level = level
        self._verify = _every_width(verify)
        # Contexts grow and machines are busy: all widths stretch alike, by what served rounds took.
        self._stretch = 1.0

    @property
    def plain_speed(self) -> float:
        """Tokens per millisecond of plain decoding."""
        return 1.0 / self.verify(1)

    def verify(self, nodes: int) -> float:
        """Of one target forward over so many rows."""
        return self._stretch * self._verify[min(nodes, len(self._verify) - 1)]

    def verify_step(self, nodes: int) -> float:
        """What one node more than `nodes` adds."""
        last = len(self._verify) - 2
        return self.verify(min(nodes, last) + 1) - self.verify(min(nodes, last))

    def served(self, nodes: int, milliseconds: float) -> None:
        """Takes the time of a served verification; a stall counts as half as long again."""
        expected = self.verify(nodes)
        self._stretch *= 1 + 0.05 * (min(milliseconds / expected, 1.5) - 1)


def _every_width(verify: dict[int, float]) -> list[float]:
    """Times by width, between the measured ones on a line, never falling; the first entry stands for nothing."""
    widths = sorted(verify)
    times = [0.0]
    for low, high in zip(widths, [*widths[1:], widths[-1] + 1], strict=True):
        slope = (verify.get(high, verify[low]) - verify[low]) / (high - low)
        for step in range(high - low):
            times.append(max(times[-1], verify[low] + slope * step))
    return times


@torch.inference_mode()
def measure_costs(target: TargetModel, head: DraftHead) -> TreeCosts:
    """Times target and head as they are served, at a context of `CONTEXT` tokens; takes about a second.

    The best of three counts: what disturbs a measurement only ever makes it longer.
    """
    context = min(CONTEXT, target.max_context - max(WIDTHS))
    widths = [width for width in WIDTHS if width < target.max_context - context]
    session = target.session(context, head.taps(target.default_taps))
    try:
        output = session.prefill([index % target.vocabulary_size for index in range(context)])
        verify = {}
        for width in widths:
            order = torch.arange(width, device=target.device)
            mask = None if width == 1 else order[:, None] >= order
            verify[width] = _best(partial(session.verify, order, order, mask), target)
    finally:
        session.close()
    assert output.taps is not None
    drafts = HeadSession(head, context + 2)
    embed = getattr(head, "embed_tokens", target.embed)
    tokens = torch.zeros(context, dtype=torch.long, device=target.device)
    state = drafts.extend(embed(tokens), output.taps)
    seen = torch.ones(1, 1, dtype=torch.bool, device=target.device)

    def level() -> None:
        drafted = drafts.expand(embed(tokens[:1]), head.feedback(state)[None], 1, seen, 0)
        head.logits(drafted).topk(2, -1).values.tolist()

    return TreeCosts(verify, _best(level, target))


def _best(run: Callable[[], object], target: TargetModel) -> float:
    """The shortest of some runs, in milliseconds."""
    run()
    times = []
    for _ in range(_REPEATS):
        _finish(target)
        start = perf_counter()
        run()
        _finish(target)
        times.append(perf_counter() - start)
    return 1000 * min(times)


def _finish(target: TargetModel) -> None:
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)
