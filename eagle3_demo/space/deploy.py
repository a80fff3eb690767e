"""Puts the demo on a Hugging Face Space: what would be uploaded, what stands in the way, and the upload itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from eagle3_demo.errors import UserError
from eagle3_demo.presets import REPOSITORY

UPLOADED = (
    "app.py",
    "README.md",
    "LICENSE",
    "requirements.txt",
    "eagle3_demo/**/*",
    "assets/prompts.jsonl",
    "assets/traces/*",
    "assets/benchmarks/*",
    "assets/screenshots/*",
    "checkpoints/**/*",
    "docs/*.md",
)
"""What a Space needs; tests and the training corpus stay here."""

LARGE = 10_000_000
"""Bytes above which the hub keeps a file as a large object; huggingface_hub does that by itself."""

LARGEST = 1_000_000_000
"""Bytes that a Space's files may have altogether."""

_SECRET = re.compile(rb"hf_[A-Za-z0-9]{30,}|-----BEGIN [A-Z ]*PRIVATE KEY-----|AKIA[0-9A-Z]{16}|ghp_[A-Za-z0-9]{36}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be uploaded, and why not.

    Attributes:
        files: path in the Space and bytes.
        problems: reasons not to deploy, each a sentence.
    """

    files: tuple[tuple[str, int], ...]
    problems: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes altogether."""
        return sum(size for _, size in self.files)


def make_plan(root: Path = REPOSITORY) -> Plan:
    """Looks at everything that would go up."""
    files = tuple((path.relative_to(root).as_posix(), path.stat().st_size) for path in _files(root))
    problems = [*_front_matter_problems(root), *_content_problems(root, files)]
    return Plan(files, tuple(problems))


def deploy(
    hub: Any,
    name: str,
    plan: Plan,
    *,
    root: Path = REPOSITORY,
    hardware: str | None = None,
    private: bool = False,
    variables: dict[str, str] | None = None,
    timeout: float = 1800,
) -> str:
    """Creates or updates a Space and waits until it runs.

    Args:
        hub: `huggingface_hub.HfApi`, or a stand-in.
        name: OWNER/NAME.
        hardware: a flavour of the hub, such as cpu-basic or t4-small; None leaves it as it is.

    Returns:
        The Space's address.

    Raises:
        UserError: the plan has problems, or the Space does not start.
    """
    if plan.problems:
        raise UserError("not deployed: " + " ".join(plan.problems))
    hub.create_repo(name, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
    for key, value in (variables or {}).items():
        hub.add_space_variable(name, key, value)
    hub.upload_folder(
        repo_id=name,
        repo_type="space",
        folder_path=str(root),
        allow_patterns=[path for path, _ in plan.files],
        delete_patterns=["*"],
        commit_message="Deploy the demo",
    )
    if hardware:
        hub.request_space_hardware(name, hardware)
    stage = str(getattr(hub.wait_for_space(name, timeout=timeout), "stage", "unknown"))
    if "ERROR" in stage.upper():
        raise UserError(f"the Space {name} was uploaded but does not run ({stage}); its log tells why")
    return f"https://huggingface.co/spaces/{name}"


def _files(root: Path) -> Iterator[Path]:
    found = {path for pattern in UPLOADED for path in root.glob(pattern) if path.is_file()}
    yield from sorted(path for path in found if "__pycache__" not in path.parts and path.suffix != ".pyc")


def _front_matter_problems(root: Path) -> Iterator[str]:
    try:
        text = (root / "README.md").read_text(encoding="utf-8")
        matter = yaml.safe_load(text.split("---\n")[1])
    except (OSError, IndexError, yaml.YAMLError) as error:
        yield f"README.md has no readable front matter ({type(error).__name__})."
        return
    if not isinstance(matter, dict) or matter.get("sdk") != "gradio":
        yield "README.md: sdk must be gradio."
        return
    if str(matter.get("sdk_version")) != version("gradio"):
        yield f"README.md: sdk_version is {matter.get('sdk_version')}, tested is gradio {version('gradio')}."
    if not (root / str(matter.get("app_file", ""))).is_file():
        yield f"README.md: app_file {matter.get('app_file')!r} does not exist."
    if len(str(matter.get("short_description", ""))) > 60:
        yield "README.md: short_description is longer than 60 characters."


def _content_problems(root: Path, files: tuple[tuple[str, int], ...]) -> Iterator[str]:
    names = {path for path, _ in files}
    for needed in ("app.py", "requirements.txt", "README.md"):
        if needed not in names:
            yield f"{needed} is missing."
    if not any(path.startswith("checkpoints/") and path.endswith(".safetensors") for path in names):
        yield "No draft head lies in checkpoints/."
    total = sum(size for _, size in files)
    if total > LARGEST:
        yield f"The files have {total / 1e9:.1f} GB, a Space takes {LARGEST / 1e9:.0f}."
    for path, size in files:
        if size < LARGE and _SECRET.search((root / path).read_bytes()):
            yield f"{path} seems to hold a secret; take it out."
