"""docs/faults.md names tests that exist, and the faults that the code points at."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TEXT = (REPOSITORY / "docs" / "faults.md").read_text(encoding="utf-8")


def functions(path: Path) -> set[str]:
    """Names of a test file's functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", TEXT)
    assert len(named) >= 60
    missing = [f"{file}::{name}" for file, name in named if name not in functions(REPOSITORY / "tests" / file)]
    assert missing == []


def test_every_fault_in_the_code_has_a_row_with_a_test() -> None:
    rows = dict(re.findall(r"^\| (B\d\d) \| .+? \| (.+) \|$", TEXT, re.M))
    assert len(rows) == 36
    assert all("::test_" in tests or "as B" in tests for tests in rows.values())
    sources = [*(REPOSITORY / "eagle3_demo").rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")]
    mentioned = {fault for path in sources for fault in re.findall(r"\bB\d\d\b", path.read_text(encoding="utf-8"))}
    assert mentioned - rows.keys() == set()
