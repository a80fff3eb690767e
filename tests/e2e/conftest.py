"""A browser and a served page for each test; skipped with the reason where there is no chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from eagle3_demo.engine import DecodingEngine
from eagle3_demo.ui.app import build
from eagle3_demo.ui.examples import Example
from tests.e2e.visitor import Visitor, open_browser

Serve = Callable[..., str]
Visit = Callable[..., Visitor]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Serve]:
    """Serves the page for an engine and gives its address."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    served = []

    def start(engine: DecodingEngine, examples: Mapping[str, Example] | None = None) -> str:
        page = build(engine, examples or {})
        served.append(page)
        return page.launch()

    yield start
    for page in served:
        page.blocks.close(verbose=False)


@pytest.fixture
def visit(tmp_path: Path) -> Iterator[Visit]:
    """Opens an address in a browser of its own; in the end no console may hold an error."""
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} (Debian packages chromium and chromium-driver)")
    visitors: list[Visitor] = []

    def start(address: str, width: int = 1400, height: int = 900, dark: bool = False) -> Visitor:
        profile = tmp_path / f"profile-{len(visitors)}"
        visitor = Visitor(open_browser(profile, width, height, dark), address, tmp_path)
        visitors.append(visitor)
        return visitor

    yield start
    errors = [error for visitor in visitors for error in visitor.leave()]
    assert errors == []
