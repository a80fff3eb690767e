"""Text of a model or a person, as Markdown in which HTML, pictures and diagrams stay the characters that were typed.

Markup keeps working (lists, emphasis, code, links), tags do not: they are neither run nor swallowed (faults B43).
Inside code nothing needs escaping, so code is passed on as it is.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"^ {0,3}(?:[-*+>]\s+|\d+[.)]\s+)*(?P<fence>`{3,}|~{3,})(?P<language>[^\n]*)$")
_INLINE_CODE = re.compile(r"(?<!`)(?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)", re.DOTALL)
_DIAGRAM = re.compile(r"mermaid\s*$")
_ENTITY = {"<": "&lt;", "&": "&amp;"}
_ZERO_WIDTH_SPACE = "\u200b"


def literal_markdown(text: str) -> str:
    """Markdown that shows the text's own `<`, `&` and `![` wherever they are not code."""
    shown: list[str] = []
    prose: list[str] = []
    closing: str | None = None
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if closing is not None:
            shown.append(line)
            closing = None if _closes(line, closing) else closing
        elif fence and not ("`" in fence["fence"] and "`" in fence["language"]):
            shown += [_escape_prose("\n".join(prose))] if prose else []
            prose = []
            closing = fence["fence"]
            shown.append(_DIAGRAM.sub("text", line))
        else:
            prose.append(line)
    shown += [_escape_prose("\n".join(prose))] if prose else []
    return "\n".join(shown)


def _closes(line: str, fence: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(fence) and set(stripped) == {fence[0]}


def _escape_prose(prose: str) -> str:
    """Escapes paragraph by paragraph: inline code cannot cross an empty line."""
    return "".join(part if not part.strip() else _escape_paragraph(part) for part in re.split(r"(\n\s*\n)", prose))


def _escape_paragraph(paragraph: str) -> str:
    if paragraph.lstrip("\n").startswith(("    ", "\t")):
        # Perhaps an indented code block, perhaps part of a list: this reads the same in both.
        return paragraph.replace("<", "<" + _ZERO_WIDTH_SPACE)
    escaped, end = "", 0
    for code in _INLINE_CODE.finditer(paragraph):
        escaped += _escape_text(paragraph[end : code.start()]) + code[0]
        end = code.end()
    return escaped + _escape_text(paragraph[end:])


def _escape_text(text: str) -> str:
    return re.sub(r"(\\*)([<&])", _entity, text).replace("![", "!\\[")


def _entity(match: re.Match[str]) -> str:
    # An odd backslash would escape our entity's ampersand in place of the character it was meant for.
    backslashes = match[1][: len(match[1]) // 2 * 2]
    return backslashes + _ENTITY[match[2]]
