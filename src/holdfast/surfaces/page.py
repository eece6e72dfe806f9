"""A page for people, as Markdown and as one HTML file: the same blocks in the same order.

The HTML has no scripts and asks for nothing from outside. It prints on A4, is read without colour, and fits a
telephone: there a row of a table becomes a small list, with the name of its column before each value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
@page { size: A4; margin: 15mm; }
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 800px; margin: 2em auto; padding: 0 1em; color: #111;
  background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.6em; line-height: 1.2; }
h2 { font-size: 1.25em; margin-top: 2em; border-bottom: 2px solid #111; }
h3 { font-size: 1.05em; margin: 1.6em 0 0.4em; }
p, ul, ol { margin: 0.5em 0; } ol, ul { padding-left: 1.6em; } li { margin: 0.4em 0; }
a { color: inherit; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { white-space: pre-wrap; margin: 0.3em 0; padding: 6px 10px; border: 1px solid #777; border-left-width: 4px; }
table { border-collapse: collapse; width: 100%; } th { font-weight: 600; border-bottom: 1px solid #111; }
td, th { text-align: left; vertical-align: top; padding: 3px 10px 3px 0; overflow-wrap: normal; }
td { border-bottom: 1px solid #ccc; } td.long { overflow-wrap: anywhere; }
.strong { font-size: 1.2em; font-weight: 700; border: 2px solid #111; display: inline-block; padding: 4px 12px; }
svg { max-width: 100%; height: auto; }
@media screen and (max-width: 600px) {
  body { margin: 1em auto; } svg, thead { display: none; }
  table, tbody, tr, td { display: block; width: 100%; overflow-wrap: anywhere; }
  tr { border-bottom: 1px solid #777; padding: 4px 0; } td { border: 0; padding: 1px 0; }
  td:first-child { font-weight: 600; } td:empty { display: none; }
  td + td::before { content: attr(data-name); font-weight: 600; }
}
@media print {
  body { margin: 0; max-width: none; padding: 0; font-size: 10.5pt; } code, pre { font-size: 9pt; }
  h1, h2, h3 { break-after: avoid; } tr, li, pre.short { break-inside: avoid; }
}
"""
_LONG = re.compile(r"\S{24}")  # in a cell: it may be broken anywhere, so that the table fits
_LINK = re.compile(r"\[([^\]]+)\]\(#([a-z0-9-]+)\)")
_CODE = re.compile(r"`([^`]+)`")
SHORT_LINES = 12  # a listing of so many lines is never split by a page break


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. What is between backticks is code, and [words](#anchor) lead to a heading."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Code:
    text: str
    language: str = "sh"


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    command: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Steps:
    items: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Picture:
    """Only in HTML: an SVG without anything from outside; a table has the same figures."""

    svg: str


Block = Heading | Text | Bullets | Table | Code | Steps | Picture


def markdown(blocks: Sequence[Block]) -> str:
    lines: list[str] = []
    for one in blocks:
        lines += [*_markdown(one), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _markdown(one: Block) -> list[str]:
    match one:
        case Heading(text, level):
            return [f"{'#' * level} {text}"]
        case Text(text, strong):
            return [f"**{text}**" if strong else text]
        case Bullets(items):
            return [f"- {item}" for item in items]
        case Table(head, rows):
            shown = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
            return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *shown]
        case Code(text, language):
            return [f"```{language}", *text.rstrip("\n").split("\n"), "```"]
        case Steps(items):
            lines = list[str]()
            for number, step in enumerate(items, 1):
                lines.append(f"{number}. {step.title}")
                lines += ["", f"   ```sh\n   {step.command}\n   ```", ""] if step.command else []
                lines += [f"   {step.note}"] if step.note else []
            return lines
        case Picture():
            return []


def _cell(text: str) -> str:
    return _LINK.sub(r"\1", " ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def html(title: str, blocks: Sequence[Block]) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>\n'
        f"{''.join(_html(one) for one in blocks)}</body></html>\n"
    )


def _html(one: Block) -> str:
    match one:
        case Heading(text, level, anchor):
            named = f' id="{escape(anchor)}"' if anchor else ""
            return f"<h{level}{named}>{_inline(text)}</h{level}>\n"
        case Text(text, strong):
            kind = ' class="strong"' if strong else ""
            return f"<p{kind}>{_inline(text)}</p>\n"
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>\n"
        case Table(head, rows):
            return _table(head, rows)
        case Code(text):
            return _listing(text)
        case Steps(items):
            return f"<ol>{''.join(_step(step) for step in items)}</ol>\n"
        case Picture(svg):
            return f"{svg}\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr>{''.join(_html_cell(name, cell) for name, cell in zip(head, row, strict=True))}</tr>" for row in rows
    )
    top = f"<thead><tr>{names}</tr></thead>" if any(head) else ""
    return f"<table>{top}<tbody>{body}</tbody></table>\n"


def _html_cell(name: str, text: str) -> str:
    long = ' class="long"' if _LONG.search(text) else ""
    named = f' data-name="{escape(name)}: "' if name else ""
    return f"<td{named}{long}>{_inline(text)}</td>"


def _listing(text: str) -> str:
    short = ' class="short"' if text.count("\n") < SHORT_LINES else ""
    return f"<pre{short}>{escape(text.rstrip())}</pre>\n"


def _step(step: Step) -> str:
    command = _listing(step.command) if step.command else ""
    note = f"<div>{_inline(step.note)}</div>" if step.note else ""
    return f"<li>{_inline(step.title)}{command}{note}</li>"


def _inline(text: str) -> str:
    """Escaped, with code and links."""
    return _CODE.sub(r"<code>\1</code>", _LINK.sub(r'<a href="#\2">\1</a>', escape(text)))
