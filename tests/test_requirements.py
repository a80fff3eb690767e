"""README, requirements, constraints, the code's imports and what is installed say the same (faults B46)."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

from eagle3_demo.cli.main import app

REPOSITORY = Path(__file__).resolve().parent.parent


def requirements(name: str) -> dict[str, Requirement]:
    """The requirements of a file, by canonical name."""
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    parsed = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in parsed}


def front_matter() -> dict[str, Any]:
    """The YAML at the head of the README."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text.split("---\n")[1]))


RANGES = requirements("requirements.txt") | requirements("requirements-dev.txt")
PINS = requirements("constraints.txt")


@pytest.mark.parametrize("name", RANGES)
def test_every_requirement_is_pinned_within_its_range(name: str) -> None:
    (pin,) = PINS[name].specifier
    assert pin.operator == "==" and RANGES[name].specifier.contains(pin.version)


def test_the_space_runs_the_gradio_we_test() -> None:
    stated = front_matter()["sdk_version"]
    assert front_matter()["sdk"] == "gradio"
    assert str(PINS["gradio"].specifier) == f"=={stated}"
    assert version("gradio") == stated


def test_a_space_can_meet_the_ranges() -> None:
    for torch in ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.13.0"):
        assert RANGES["torch"].specifier.contains(torch)
    assert front_matter()["python_version"] == "3.12"


def test_the_front_matter_is_what_a_space_accepts() -> None:
    matter = front_matter()
    assert (REPOSITORY / matter["app_file"]).is_file()
    assert len(matter["short_description"]) <= 60
    assert {matter["colorFrom"], matter["colorTo"]} <= {
        *("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"),
    }
    assert matter["license"] == "apache-2.0"
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text(encoding="utf-8")


def test_what_the_code_imports_is_required() -> None:
    imported: dict[str, Path] = {}
    for path in [REPOSITORY / "app.py", *(REPOSITORY / "eagle3_demo").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0]: path for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported[node.module.partition(".")[0]] = path
    required = requirements("requirements.txt")
    for module, path in imported.items():
        if module in sys.stdlib_module_names or module == "eagle3_demo":
            continue
        homes = {canonicalize_name(home) for home in packages_distributions().get(module, [module])}
        assert homes & required.keys(), f"{path} imports {module}, which requirements.txt lacks"


def test_the_readmes_commands_exist() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    lines = re.findall(r"^python -m eagle3_demo (.+)$", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.M)
    assert len(lines) >= 8
    for line in lines:
        name = line.split()[0]
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", line)) <= known, line


def test_the_makefile_has_the_readmes_targets() -> None:
    targets = re.findall(r"^make (\w+)", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.M)
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test"} <= set(targets)
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)
