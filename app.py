"""The demo's entry point, here and on a Space: serve the page at once, load the engine behind it.

`PORT` or `GRADIO_SERVER_PORT` choose the port, `GRADIO_SERVER_NAME` the network address (`0.0.0.0` for every one). The
README lists the `EAGLE3_…` variables.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from eagle3_demo.background_engine import BackgroundEngine
from eagle3_demo.cli.console import note, progress_shown
from eagle3_demo.engine import DecodingEngine, load_engine
from eagle3_demo.errors import UserError
from eagle3_demo.presets import EMBEDDED, find_preset
from eagle3_demo.progress import ProgressCallback
from eagle3_demo.space.zero_gpu import ZeroGpuEngine, import_spaces, on_zero_gpu
from eagle3_demo.ui.app import build

# Must come before torch, which nothing above imports: engines do when they are loaded.
spaces = import_spaces()


def whole_number(name: str, lowest: int, highest: int) -> int | None:
    """A number from the environment; None where it is not set.

    Raises:
        UserError: it is no number, or out of range.
    """
    text = os.environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or not lowest <= int(text) <= highest:
        raise UserError(f"{name} = {text!r} is not a whole number from {lowest} to {highest}; change or unset it")
    return int(text)


def chosen_port() -> int | None:
    """The port from `PORT`; None leaves the choice to Gradio.

    Raises:
        UserError: `PORT` is not a port number.
    """
    return whole_number("PORT", 1, 65535)


def wants_mcp() -> bool:
    """Whether `EAGLE3_MCP=1` asks for the endpoints as MCP tools.

    Raises:
        UserError: it does, and the package for it is not installed.
    """
    if os.environ.get("EAGLE3_MCP") != "1":
        return False
    if importlib.util.find_spec("mcp") is None:
        raise UserError("EAGLE3_MCP=1 needs the package mcp: pip install 'gradio[mcp]', or unset it")
    return True


def load(progress: ProgressCallback) -> DecodingEngine:
    """Loads the pair of `EAGLE3_PRESET`, its progress told to the page and to the terminal."""
    with progress_shown() as shown:

        def both(fraction: float, doing: str) -> None:
            progress(fraction, doing)
            shown(fraction, doing)

        return load_engine(os.environ.get("EAGLE3_PRESET") or None, progress=both)


def chosen_engine() -> DecodingEngine:
    """The engine for the page. On ZeroGPU it is loaded first, as its workers are forked from this process."""
    if spaces is not None and on_zero_gpu():
        preset = os.environ.get("EAGLE3_PRESET") or None
        return ZeroGpuEngine(load_engine(preset, device="cuda"), spaces.GPU)
    name = os.environ.get("EAGLE3_PRESET")
    preset_names = find_preset(name) if name else EMBEDDED
    return BackgroundEngine(
        load,
        preset_names.target,
        Path(preset_names.head).name,
        failed=lambda message: note(f"The model could not be loaded, only recorded runs are shown: {message}"),
    )


def main() -> None:
    """Serves until it is interrupted."""
    try:
        port = chosen_port()
        queue = whole_number("EAGLE3_QUEUE", 1, 1000)
        tokens = whole_number("EAGLE3_MAX_NEW_TOKENS", 1, 8192)
        engine = chosen_engine()
        page = build(engine, **_given(queue_length=queue, most_tokens=tokens))
        address = page.launch(server_port=port, mcp_server=wants_mcp())
    except (UserError, OSError) as error:
        sys.exit(f"The demo cannot start: {error}")
    if isinstance(engine, BackgroundEngine):
        engine.start()
    print(f"The demo is ready: open {address} (Ctrl+C ends it)", flush=True)
    page.blocks.block_thread()


def _given(**values: int | None) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


if __name__ == "__main__":
    main()
