"""Two recordings of one prompt, read against each other: speedup, and whether the outputs are the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3_demo.decoding.events import first_divergence
from eagle3_demo.ui.recording import Recording
from eagle3_demo.ui.steps import visible
from eagle3_demo.ui.why import explanation

NEAR_TIE = 0.05
"""Gap of log-probabilities below which rounding may decide between two tokens."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of one prompt, growing side by side; `left` is what `right` is measured against."""

    left: Recording
    right: Recording

    def view(self, *, autoplay: bool = False) -> dict[str, Any]:
        """What the board shows, as JSON data. `autoplay` replays a finished race as soon as it is seen."""
        finished = self.left.finished and self.right.finished
        return {
            "run": self.right.number,
            "prompt": self.right.prompt,
            "origin": self.right.origin,
            "example": self.right.example,
            "finished": finished,
            "autoplay": autoplay,
            "speedup": self.speedup(),
            "verdict": self.verdict(),
            "why": explanation(self.left, self.right) if finished else None,
            "sides": {"left": self.left.side_view(), "right": self.right.side_view()},
        }

    def speedup(self) -> float | None:
        """The right side's decode speed as a multiple of the left side's; None before both have one."""
        plain = self.left.statistics.tokens_per_second
        fast = self.right.statistics.tokens_per_second
        return round(fast / plain, 2) if plain and fast else None

    def verdict(self) -> dict[str, Any]:
        """Whether both sides emitted the same token ids.

        Returns:
            `state` is running, identical, different or stopped; `index` is the first differing token; `text` and
            `detail` say it in words.
        """
        plain, fast = self.left.statistics, self.right.statistics
        different = first_divergence(plain.token_ids, fast.token_ids)
        shared = min(plain.new_tokens, fast.new_tokens)
        if different is not None and (different < shared or self._both_ended()):
            return self._verdict("different", self._difference(different), self._doubt(different), different)
        if self._both_ended():
            return self._verdict("identical", f"Identical output: the same {shared} tokens", self._guarantee())
        if self.left.finished and self.right.finished:
            return self._verdict("stopped", f"Stopped; the first {shared} tokens are the same", self._guarantee())
        running = f"The same so far: {shared} tokens" if shared else "Reading the prompt …"
        return self._verdict("running", running, "")

    @staticmethod
    def _verdict(state: str, text: str, detail: str, index: int | None = None) -> dict[str, Any]:
        return {"state": state, "text": text, "detail": detail, "index": index}

    def _both_ended(self) -> bool:
        reasons = {self.left.statistics.stop_reason, self.right.statistics.stop_reason}
        return not reasons & {None, "cancelled"}

    def _guarantee(self) -> str:
        """What is promised about these settings, and how it was tested."""
        sampling = self.right.settings.sampling
        if sampling.greedy:
            return (
                "Greedy: each token is the target's likeliest, with or without drafting. "
                "Token ids were compared one by one as they came."
            )
        return (
            f"Temperature {sampling.temperature:g}, seed {sampling.seed}: the noise of each position is fixed by the "
            "seed, so both sides must draw the same tokens, and did, id by id. That the draws follow the target's own "
            "distribution is tested apart (chi-square over draws, tests/decoding/test_sampling.py)."
        )

    def _difference(self, index: int) -> str:
        texts = [
            f"“{visible(str(side.tokens[index][0]))}”" if index < len(side.tokens) else "the end"
            for side in (self.left, self.right)
        ]
        return f"Different from token {index + 1}: {texts[0]} and {texts[1]}"

    def _doubt(self, index: int) -> str:
        """How close the target's two best tokens were where the outputs part."""
        margin = self._margin(index)
        if margin is None:
            return "How close the two tokens were is not known."
        gap = f"There the target's two likeliest tokens were {margin:.3g} apart in logits"
        if margin < NEAR_TIE:
            return f"{gap}: a near-tie, which rounding in passes of different size can tip either way."
        return f"{gap}: more than rounding explains. This should not happen; please report it."

    def _margin(self, index: int) -> float | None:
        if index >= len(self.left.tokens):
            return None
        step = int(self.left.tokens[index][2])
        first = next(place for place, token in enumerate(self.left.tokens) if token[2] == step)
        tops = self.left.events[step].tree.target_tops
        place = index - first
        return tops[place][0][1] - tops[place][1][1] if place < len(tops) and len(tops[place]) > 1 else None
