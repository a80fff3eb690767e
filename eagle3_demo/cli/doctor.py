"""`doctor` says what is here and what can run; `fetch` provides the embedded target ahead of time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import psutil
from rich.table import Table

from eagle3_demo.cli.console import note, output, print_json, progress_shown
from eagle3_demo.cli.options import AsJson
from eagle3_demo.environment import processor_count, processor_name, versions
from eagle3_demo.files import cache_directory
from eagle3_demo.models.embedded import embedded_location, embedded_target
from eagle3_demo.models.native import native_kernels
from eagle3_demo.presets import PRESETS, is_cached, obstacle, this_machine


def doctor(as_json: AsJson = False) -> None:
    """Show versions, device, memory, what is cached, and which preset can run here and why not."""
    facts = examination()
    if as_json:
        print_json(facts)
        return
    console = output()
    for title in ("versions", "machine", "embedded"):
        table = Table("", "", title=title, title_justify="left", show_header=False)
        for name, value in facts[title].items():
            table.add_row(name, str(value))
        console.print(table)
    console.print("presets")
    for preset in facts["presets"]:
        console.print(f"  {preset['name']}: {'runs here' if preset['runs'] else preset['reason']}", soft_wrap=True)
        files = "files here" if preset["cached"] else "files to be downloaded"
        details = f"{preset['target']}, {preset['license']}, {preset['gigabytes']:g} GB, {files}"
        console.print(f"    {details}", style="dim", soft_wrap=True)


def fetch() -> None:
    """Provide the embedded target: find or download it, convert it once, compile its kernels, print its folder."""
    with progress_shown() as progress:
        folder = embedded_target(progress=lambda part, doing: progress(0.9 * part, doing))
        progress(0.9, "Compiling the kernels for this processor (once, some seconds)")
        kernels, lacking = native_kernels()
        progress(1.0, "Ready")
    if kernels is None:
        note(f"The kernels were not compiled, PyTorch's own are slower and will do: {lacking}")
    print(folder)


def examination() -> dict[str, Any]:
    """Everything `doctor` knows, as JSON data."""
    from huggingface_hub import get_token

    machine = this_machine()
    logged_in = get_token() is not None
    location = embedded_location()
    presets = []
    for preset in PRESETS:
        cached = location is not None if preset.embedded else is_cached(preset)
        reason = obstacle(preset, machine, logged_in=logged_in, cached=cached)
        presets.append(asdict(preset) | {"cached": cached, "runs": reason is None, "reason": reason})
    return {
        "versions": versions(),
        "machine": {
            "processor": f"{processor_name()}, {processor_count()} cores",
            "memory": f"{machine.memory:.1f} GB, {psutil.virtual_memory().available / 1e9:.1f} GB available",
            "gpu": f"{machine.gpu}, {machine.gpu_memory:.0f} GB" if machine.gpu else "none",
            "hub login": "yes" if logged_in else "no",
        },
        "embedded": {
            "model": str(location or "not on this machine; downloaded at the next start (93 MB)"),
            "cache directory": str(cache_directory()),
            "kernels": native_kernels()[1] or "compiled for this processor",
        },
        "presets": presets,
    }
