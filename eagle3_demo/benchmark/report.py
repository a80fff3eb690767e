"""The figures of a benchmark for people: a table on the console, `report.md`, and `results.json` beside it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from eagle3_demo.files import write_atomically

COLUMNS = (
    "suite",
    "method",
    "prompts",
    "tokens/s",
    "speedup",
    "over transformers",
    "acceptance length",
    "identical",
)

NOTES = """\
tokens/s: decode speed by the clock on the wall, prefill left out, all tokens pooled. speedup: median over prompts of
the speed relative to plain decoding (`autoregressive`) on the same prompt. over transformers: the same, relative to
`transformers.generate` with the same weights. acceptance length: tokens per target forward after the prefill.
identical: prompts whose output is plain decoding's, token for token. Methods ran interleaved, prompt by prompt, taking
turns at going first, after an unmeasured warm-up; only the first turn of each conversation is asked."""


def table_rows(results: dict[str, Any]) -> list[list[str]]:
    """The rows of the table, overall first and then suite by suite, in the order of `COLUMNS`."""
    groups = [("all", results["overall"]), *results["suites"].items()]
    if len(groups) == 2:
        groups = groups[:1]
    return [
        [
            suite,
            method,
            str(row["prompts"]),
            _number(row["tokens_per_second"], 1),
            _number(row["speedup"], 2, "x"),
            _number(row["speedup_over_transformers"], 2, "x"),
            _number(row["acceptance_length"], 2),
            f"{row['identical']}/{row['compared']}" if row["compared"] else "-",
        ]
        for suite, methods in groups
        for method, row in methods.items()
    ]


def console_table(results: dict[str, Any]) -> Table:
    """The table for a terminal of 80 columns: suite and method share the first column."""
    table = Table("suite, method", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS[3:]:
        first, _, rest = name.partition(" ")
        table.add_column(f"{first}\n{rest}".strip(), justify="right", no_wrap=True)
    suite = None
    for row in table_rows(results):
        if row[0] != suite:
            suite = row[0]
            table.add_row(suite)
        table.add_row(f"  {row[1]}", *row[3:])
    return table


def markdown(results: dict[str, Any]) -> str:
    """The whole report as Markdown: what was run, where, and the table."""
    facts = {
        "target": results["target"],
        "draft heads": ", ".join(f"{method}: {name or 'none'}" for method, name in results["heads"].items()) or "none",
        "speculation": results["speculation"]["reason"],
        "device": f"{results['device']} ({results['machine']['processor']}), {results['machine']['threads']} threads",
        "dtype": results["dtype"],
        "settings": json.dumps(results["settings"]),
        "prompts": f"{len(results['prompts'])} of {results['prompt_file']['name']} "
        f"(SHA-256 {results['prompt_file']['sha256']})",
        "versions": ", ".join(f"{name} {number}" for name, number in results["versions"].items()),
        "date": results["date"],
    }
    lines = ["# Benchmark", ""]
    if not results["complete"]:
        lines += ["**Interrupted: not every prompt was measured.**", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", _markdown_row(COLUMNS), _markdown_row(["---"] * 2 + ["---:"] * (len(COLUMNS) - 2))]
    lines += [_markdown_row(row) for row in table_rows(results)]
    return "\n".join([*lines, "", NOTES, *_divergences(results)]) + "\n"


def write_report(results: dict[str, Any], folder: Path) -> None:
    """Writes `results.json` and `report.md`, each whole or not at all, in UTF-8."""
    data = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    for name, text in (("results.json", data), ("report.md", markdown(results))):
        write_atomically(folder / name, partial(Path.write_text, data=text, encoding="utf-8"))


def _divergences(results: dict[str, Any]) -> list[str]:
    lines = [
        f"- {prompt['suite']} {prompt['id']}, {method}: token {figures['first_divergence']}"
        for prompt in results["prompts"]
        for method, figures in prompt["methods"].items()
        if figures["identical"] is False
    ]
    return ["", "First divergence from plain decoding, where output is not identical:", "", *lines] if lines else []


def _markdown_row(cells: list[str] | tuple[str, ...]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
