from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from eagle3_demo.errors import UserError
from eagle3_demo.settings import generation_settings
from eagle3_demo.traces import TRACES, load_trace, load_traces, record, save_trace
from tests.ui.examples import scripted_trace
from tests.ui.scripted import ScriptedEngine


def test_a_trace_comes_back_as_it_was_written(tmp_path: Path) -> None:
    trace = scripted_trace()
    loaded = load_trace(save_trace(trace, tmp_path))
    assert loaded.right.settings == trace.right.settings
    assert [event.tokens for event in loaded.left.events] == [event.tokens for event in trace.left.events]
    assert [event.tree.statuses for event in loaded.right.events] == [e.tree.statuses for e in trace.right.events]
    assert loaded.recorded == trace.recorded
    assert loaded.recorded.date and loaded.recorded.machine


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    trace = scripted_trace()
    first = save_trace(trace, tmp_path / "one").read_bytes()
    assert save_trace(trace, tmp_path / "two").read_bytes() == first


@pytest.mark.parametrize("content", [b"", b"no gzip", gzip.compress(b"{}"), gzip.compress(b"no json")])
def test_a_damaged_trace_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.json\.gz.*record-traces"):
        load_trace(path)


def test_a_trace_of_another_format_is_refused(tmp_path: Path) -> None:
    path = save_trace(scripted_trace(), tmp_path)
    content = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps(content | {"format": 99}).encode()))
    with pytest.raises(UserError, match="format 99"):
        load_trace(path)


def test_without_a_head_there_is_nothing_to_record() -> None:
    class Headless(ScriptedEngine):
        def speculation(self, settings):  # type: ignore[no-untyped-def]
            return super().speculation(settings.model_copy(update={"method": "autoregressive"}))

    with pytest.raises(UserError, match="nothing to record"):
        record(Headless(), "x", "X", "Hi", generation_settings())


def test_no_folder_no_traces(tmp_path: Path) -> None:
    assert load_traces(tmp_path / "none") == []


def test_the_recorded_races_that_come_along_are_real_and_lossless() -> None:
    for trace in load_traces(TRACES):
        left, right = ([t.id for event in run.events for t in event.tokens] for run in (trace.left, trace.right))
        assert left == right, trace.name
        assert "SmolLM2" in trace.recorded.target
        assert all(event.tree.target_tops for event in trace.right.events), trace.name
        assert trace.prompt and trace.recorded.date
