"""What a result depends on besides its settings: versions, processor, threads."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import eagle3_demo

PACKAGES = ("torch", "transformers", "accelerate", "bitsandbytes", "tokenizers", "gradio")


def versions() -> dict[str, str]:
    """Versions of Python, this package and what it builds on; packages that are not installed are left out."""
    found = {"python": platform.python_version(), "eagle3_demo": eagle3_demo.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def processor_name() -> str:
    """The processor as its maker calls it, where the system tells."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def processor_count() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
