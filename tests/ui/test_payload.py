"""What a long, fast run sends to the page: Gradio's own differ on the views, batch by batch."""

from __future__ import annotations

from typing import Any

import orjson
from gradio.utils import diff

from eagle3_demo.settings import generation_settings
from eagle3_demo.ui.comparison import Comparison
from eagle3_demo.ui.recording import Recording
from tests.ui.scripted import ScriptedEngine, scripted_step

SECONDS, UPDATES_A_SECOND, TOKENS_A_SECOND = 10, 12, 300
MOST_BYTES = 1_000_000


def test_ten_seconds_at_300_tokens_a_second_stay_below_a_megabyte() -> None:
    engine = ScriptedEngine()
    settings = {"left": generation_settings(method="autoregressive"), "right": generation_settings()}
    runs = {side: Recording("Hi", own, engine.speculation(own)) for side, own in settings.items()}
    race = Comparison(**runs)
    total = SECONDS * TOKENS_A_SECOND
    words = [f" word{number % 90}" for number in range(total)]
    ends = {"left": 0, "right": 0}
    before: list[Any] = [{}, {}]
    sent = 0
    for update in range(SECONDS * UPDATES_A_SECOND):
        last = update == SECONDS * UPDATES_A_SECOND - 1
        for side, share, stride in (("left", 0.36, 1), ("right", 0.64, 3)):
            goal = int(total * share * (update + 1) / (SECONDS * UPDATES_A_SECOND))
            while ends[side] < goal:
                start, end = ends[side], ends[side] + stride
                reason = "length" if last and end >= goal else None
                drafts = side == "right" and bool(runs[side].steps)
                runs[side].add(scripted_step(len(runs[side].steps), words, start, end, drafts, reason))
                ends[side] = end
        after = [race.view(), race.right.tree_view()]
        sent += sum(len(orjson.dumps(diff(old, new))) for old, new in zip(before, after, strict=True))
        before = after
    assert race.left.finished and race.right.finished
    sent += len(orjson.dumps(before))
    assert sent < MOST_BYTES, f"{sent:,} bytes"
