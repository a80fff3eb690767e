"""Two recordings of one prompt, read against each other: speedup, and whether the outputs are the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3_demo.decoding.events import first_divergence
from eagle3_demo.ui.recording import Recording
from eagle3_demo.ui.steps import visible


@dataclass(frozen=True, slots=True)
class Comparison:
    """The plain run and the EAGLE-3 run of one prompt, growing side by side."""

    autoregressive: Recording
    eagle3: Recording

    def view(self) -> dict[str, Any]:
        """What the board shows, as JSON data."""
        return {
            "run": self.eagle3.number,
            "speedup": self.speedup(),
            "verdict": self.verdict(),
            "sides": {
                "autoregressive": self.autoregressive.answer_view(),
                "eagle3": self.eagle3.answer_view(),
            },
        }

    def speedup(self) -> float | None:
        """EAGLE-3's decode speed as a multiple of plain decoding's; None before both have one."""
        plain = self.autoregressive.statistics.tokens_per_second
        fast = self.eagle3.statistics.tokens_per_second
        return round(fast / plain, 2) if plain and fast else None

    def verdict(self) -> dict[str, str]:
        """Whether both sides emitted the same token ids: `state` is running, identical, different or stopped."""
        plain, fast = self.autoregressive.statistics, self.eagle3.statistics
        different = first_divergence(plain.token_ids, fast.token_ids)
        shared = min(plain.new_tokens, fast.new_tokens)
        if different is not None and (different < shared or self._both_ended()):
            return {"state": "different", "text": self._difference(different)}
        if self._both_ended():
            return {"state": "identical", "text": f"Identical output: the same {shared} tokens"}
        if self.autoregressive.finished and self.eagle3.finished:
            return {"state": "stopped", "text": f"Stopped; the first {shared} tokens are the same"}
        return {"state": "running", "text": f"The same so far: {shared} tokens" if shared else "Reading the prompt …"}

    def _both_ended(self) -> bool:
        reasons = {self.autoregressive.statistics.stop_reason, self.eagle3.statistics.stop_reason}
        return not reasons & {None, "cancelled"}

    def _difference(self, index: int) -> str:
        texts = [
            f"“{visible(str(side.tokens[index][0]))}”" if index < len(side.tokens) else "the end"
            for side in (self.autoregressive, self.eagle3)
        ]
        return f"Different from token {index + 1}: {texts[0]} and {texts[1]}"
