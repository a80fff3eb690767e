"""The demo's entry point, here and on a Space: serve the page at once, load the engine behind it.

`PORT` or `GRADIO_SERVER_PORT` choose the port, `GRADIO_SERVER_NAME` the network address (`0.0.0.0` for every one).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from eagle3_demo.background_engine import BackgroundEngine
from eagle3_demo.cli.console import note, progress_shown
from eagle3_demo.engine import DecodingEngine, load_engine
from eagle3_demo.errors import UserError
from eagle3_demo.presets import EMBEDDED
from eagle3_demo.progress import ProgressCallback
from eagle3_demo.ui.app import build


def chosen_port() -> int | None:
    """The port from `PORT`; None leaves the choice to Gradio.

    Raises:
        UserError: `PORT` is not a port number.
    """
    text = os.environ.get("PORT", "")
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise UserError(f"PORT = {text!r} is not a port number; give one from 1 to 65535 or unset it")
    return int(text)


def load(progress: ProgressCallback) -> DecodingEngine:
    """Loads the embedded pair, its progress told to the page and to the terminal."""
    with progress_shown() as shown:

        def both(fraction: float, doing: str) -> None:
            progress(fraction, doing)
            shown(fraction, doing)

        return load_engine(progress=both)


def main() -> None:
    """Serves until it is interrupted."""
    engine = BackgroundEngine(
        load,
        EMBEDDED.target,
        Path(EMBEDDED.head).name,
        failed=lambda message: note(f"The model could not be loaded, only recorded runs are shown: {message}"),
    )
    try:
        port = chosen_port()
        page = build(engine)
        address = page.launch(server_port=port)
    except (UserError, OSError) as error:
        sys.exit(f"The demo cannot start: {error}")
    engine.start()
    print(f"The demo is ready: open {address} (Ctrl+C ends it)", flush=True)
    page.blocks.block_thread()


if __name__ == "__main__":
    main()
