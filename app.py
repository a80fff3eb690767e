"""The demo's entry point, here and on a Space: load the engine, build the page, serve it.

`PORT` or `GRADIO_SERVER_PORT` choose the port, `GRADIO_SERVER_NAME` the network address (`0.0.0.0` for every one).
"""

from __future__ import annotations

import os
import sys

from eagle3_demo.cli.console import progress_shown
from eagle3_demo.engine import load_engine
from eagle3_demo.errors import UserError
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


def main() -> None:
    """Serves until it is interrupted."""
    try:
        port = chosen_port()
        with progress_shown() as progress:
            engine = load_engine(progress=progress)
        page = build(engine)
        address = page.launch(server_port=port)
    except (UserError, OSError) as error:
        sys.exit(f"The demo cannot start: {error}")
    print(f"The demo is ready: open {address} (Ctrl+C ends it)", flush=True)
    page.blocks.block_thread()


if __name__ == "__main__":
    main()
