"""Where files are kept between runs, and files that are either whole or absent."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

CACHE_VARIABLE = "EAGLE3_CACHE"


def cache_directory() -> Path:
    """What can be made again is kept in EAGLE3_CACHE, else in `eagle3-demo` in the user's cache directory."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eagle3-demo"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Calls `write` with a temporary path beside `path`, then renames it over `path`.

    A reader sees the old file or the new one, never half of either.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
