from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eagle3_demo.errors import UserError
from eagle3_demo.traces import save_trace
from eagle3_demo.ui.export import viewer_page
from tests.ui.examples import scripted_trace

NASTY = "</script><script>window.ran=1</script> ${window.ran=1} {{value}} <!-- <img src=x onerror=alert(1)>"


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="recorded">(.*?)</script>', page, re.DOTALL)
    assert found
    loaded: dict[str, object] = json.loads(found[1])
    return loaded


def test_the_page_stands_alone_and_holds_every_step(tmp_path: Path) -> None:
    trace = scripted_trace()
    save_trace(trace, tmp_path)
    page = viewer_page(tmp_path)
    assert not re.findall(r"(?:src|href)=|@import|https?://(?!www\.w3\.org/)", page)
    example = data_of(page)["code"]
    assert isinstance(example, dict)
    assert len(example["trees"]["right"]["steps"]) == len(trace.right.events)
    assert example["board"]["origin"].startswith("Recorded 20")


def test_token_text_cannot_leave_its_place(tmp_path: Path) -> None:
    save_trace(scripted_trace(prompt=NASTY), tmp_path)
    page = viewer_page(tmp_path)
    assert data_of(page)["code"]["prompt"] == NASTY  # type: ignore[index]
    assert "<script>window.ran" not in page
    assert page.count("</script>") == 2


def test_without_recorded_races_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="record-traces"):
        viewer_page(tmp_path)
