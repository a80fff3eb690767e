"""Makes the pictures in assets/screenshots from the current version with the real model.

Run as `python -m tools.screenshots`; needs chromium and chromedriver, and the test tools.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from eagle3_demo.cli.console import progress_shown
from eagle3_demo.engine import load_engine
from eagle3_demo.ui.app import build
from eagle3_demo.ui.prompts import GALLERY
from tests.e2e.visitor import Visitor, open_browser

FOLDER = Path(__file__).resolve().parent.parent / "assets" / "screenshots"
PATIENCE = 300
QUESTIONS = {prompt.name: prompt.text for prompt in GALLERY}
LOOKS = {"": (1400, 900, False), "-dark": (1400, 900, True), "-phone": (360, 780, False)}


def race(visitor: Visitor) -> None:
    """Both answers and the verdict."""
    visitor.ask(QUESTIONS["code"], "#race-prompt")
    visitor.wait_for_live_race(patience=PATIENCE)


def trees(visitor: Visitor) -> None:
    """The step that accepted most drafted tokens."""
    visitor.click(".board .trees-button")
    visitor.wait_for(".tree-canvas .node.accepted")


def chat(visitor: Visitor) -> None:
    """A finished answer with its figures."""
    visitor.ask(QUESTIONS["explain"])
    visitor.wait_for(".answer-note", patience=PATIENCE)


def learn(visitor: Visitor) -> None:
    """The tour's stop with the whole tree."""
    visitor.tab("Learn")
    for _ in range(3):
        visitor.click(".tour-next")


def benchmarks(visitor: Visitor) -> None:
    """What there is to draw."""
    visitor.tab("Benchmarks")
    visitor.wait_for("#report-facts")


SCENES: tuple[Callable[[Visitor], None], ...] = (race, trees, chat, learn, benchmarks)


def main() -> None:
    """Loads the embedded pair once, then takes each picture in light, dark and on a phone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with progress_shown() as progress:
        page = build(load_engine(progress=progress))
    address = page.launch()
    for look, size in LOOKS.items():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            visitor = Visitor(open_browser(Path(profile), *size), address, Path(profile))
            for scene in SCENES:
                scene(visitor)
                time.sleep(1)
                visitor.browser.execute_script("window.scrollTo(0, 0)")
                picture = FOLDER / f"{scene.__name__}{look}.png"
                visitor.browser.save_screenshot(str(picture))
                print(picture)
            visitor.leave()
    page.blocks.close(verbose=False)


if __name__ == "__main__":
    main()
