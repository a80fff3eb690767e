"""Where files are kept between runs, and files that are either whole or absent."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle3_demo.errors import UserError

CACHE_VARIABLE = "EAGLE3_CACHE"


def cache_directory() -> Path:
    """What can be made again is kept in EAGLE3_CACHE, else in `eagle3-demo` in the user's cache directory."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eagle3-demo"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Calls `write` with a temporary path beside `path`, then renames it over `path`.

    A reader sees the old file or the new one, never half of either.

    Raises:
        UserError: the disk is full; nothing changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with full_disk_told(path):
            write(temporary)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def full_disk_told(path: Path) -> Iterator[None]:
    """Turns the error of a full disk, while `path` is written, into one for the person.

    Raises:
        UserError: the disk is full.
    """
    try:
        yield
    except Exception as error:
        if not _is_full_disk(error):
            raise
        raise UserError(
            f"there is no space left on the disk for {path}; free some, or give a folder on another disk; "
            "what was there before is unchanged"
        ) from error


def _is_full_disk(error: BaseException | None) -> bool:
    """Whether an error, or one behind it, is a full disk: libraries that write by themselves wrap it as text."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
