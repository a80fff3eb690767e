"""Whole-or-absent files."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_demo.files import write_atomically


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, lambda temporary: temporary.write_text("old"))

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [child.name for child in path.parent.iterdir()] == ["file.txt"]


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    write_atomically(tmp_path / "ours", lambda temporary: temporary.write_text(""))
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode
