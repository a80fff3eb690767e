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
QUESTIONS = {prompt.label: prompt.text for prompt in GALLERY}


def chat(visitor: Visitor) -> None:
    """A finished answer with its figures."""
    visitor.ask(QUESTIONS["Explain"])
    visitor.wait_for(".answer-note", patience=PATIENCE)


def compare(visitor: Visitor) -> None:
    """Both answers and the verdict."""
    visitor.tab("Compare")
    visitor.ask(QUESTIONS["Code"], "#compare-prompt")
    visitor.wait_for(".badge[data-state=identical], .badge[data-state=different]", patience=PATIENCE)


def trees(visitor: Visitor) -> None:
    """The step that accepted most drafted tokens."""
    visitor.tab("Draft trees")
    visitor.wait_for(".step-position", "Step")
    visitor.move_slider(_best_step(visitor))
    visitor.wait_for(".tree-canvas .node.accepted")


def _best_step(visitor: Visitor) -> int:
    """The first of the steps that emitted most tokens, read off the strip above the slider."""
    script = "return document.querySelector('.step-strip path').getAttribute('d')"
    heights = [bar.partition("v-")[2].partition("h")[0] for bar in visitor.browser.execute_script(script).split("z")]
    emitted = [int(height or 0) for height in heights]
    return emitted.index(max(emitted))


def main() -> None:
    """Loads the embedded pair once, then takes each picture in light and dark."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with progress_shown() as progress:
        page = build(load_engine(progress=progress))
    address = page.launch()
    scenes: tuple[Callable[[Visitor], None], ...] = (chat, compare, trees)
    for dark in (False, True):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            visitor = Visitor(open_browser(Path(profile), 1400, 900, dark), address, Path(profile))
            for scene in scenes:
                scene(visitor)
                time.sleep(1)
                picture = FOLDER / f"{scene.__name__}{'-dark' if dark else ''}.png"
                visitor.browser.save_screenshot(str(picture))
                print(picture)
            visitor.leave()
    page.blocks.close(verbose=False)


if __name__ == "__main__":
    main()
