from __future__ import annotations

import json
from pathlib import Path

from eagle3_demo.ui.benchmarks import describe, find_reports, speed_chart, speedup_chart

ROW = {"tokens_per_second": 30.0, "speedup": 1.5, "acceptance_length": 2.0, "identical": 2, "compared": 2}
REPORT = {
    "target": "org/<b>model</b>",
    "head": "head",
    "dtype": "packed16",
    "machine": {"processor": "CPU", "threads": 2},
    "overall": {"autoregressive": {"tokens_per_second": 20.0}, "eagle3": ROW},
    "suites": {"GSM8K": {"autoregressive": {"tokens_per_second": 20.0}, "eagle3": ROW}},
    "prompts": [{}, {}],
}


def test_reports_are_found_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(REPORT))
    (tmp_path / "other.json").write_text("[1, 2]")
    (tmp_path / "broken.json").write_text("{")
    found = find_reports((tmp_path, tmp_path / "missing"))
    assert list(found.values()) == [tmp_path / "results.json"]
    assert "2 prompts" in next(iter(found))


def test_facts_are_escaped_and_say_where_it_was_measured() -> None:
    facts = describe(REPORT)
    assert "&lt;b&gt;model" in facts and "<b>" not in facts
    assert "2 threads" in facts
    assert "2 of 2" in facts


def test_charts_hold_the_measured_figures() -> None:
    speeds = speed_chart(REPORT)
    assert {trace.name: list(trace.y) for trace in speeds.data} == {
        "plain decoding": [20.0, 20.0],
        "EAGLE-3": [30.0, 30.0],
    }
    assert [list(trace.y) for trace in speedup_chart(REPORT).data] == [[1.5, 1.5], [2.0, 2.0]]
