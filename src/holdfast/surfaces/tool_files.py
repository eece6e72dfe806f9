"""Files that tools write outside of `run.scratch` and of the agent's folder, as rows: no backup has them.

Two looks find them, and one row for each tool says which: the newest drill `tool-files`, where each tool ran alone and
every program was seen; and the notes of workers (`[surfaces] watch`), which saw the Python code of tools, but not other
programs. A file that was noted on this machine and is gone again is state no more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from holdfast.core.notices import counted
from holdfast.core.surfaces import THIS_MACHINE, Found, Surface, Verdict
from holdfast.layout.agent_home import AgentHome
from holdfast.runtime.tool.file_watch import read_written
from holdfast.surfaces.report import read_folder

KIND = "files of tools"
SHOWN_MAX = 100  # paths that a row names
NAMED_MAX = 3  # that its reason names


@dataclass(slots=True)
class _Tool:
    paths: dict[str, None] = field(default_factory=dict[str, None])  # in order
    evidence: list[str] = field(default_factory=list[str])
    at_ms: int = 0


def found_tool_files(home: AgentHome) -> Found:
    tools: dict[str, _Tool] = {}
    reports = [one.report for one in read_folder(home)[0]]
    newest = next((one for one in reversed(reports) if isinstance(one.results.files, tuple)), None)
    if newest is not None and isinstance(newest.results.files, tuple):
        for one in newest.results.files:
            for path in one.files:
                _add(tools, one.tool, path, f"drill report {newest.id}", newest.ended_ms)
    here = os.uname().nodename
    for note in read_written(home.written_file):
        if note.host != here:
            _add(tools, note.tool, f"{note.path} (on {note.host})", "seen by a worker", note.at_ms)
        elif _is_state(note.path):
            _add(tools, note.tool, note.path, "seen by a worker; other programs are not watched", note.at_ms)
    return Found(surfaces=tuple(_row(home, name, one) for name, one in sorted(tools.items())))


def _add(tools: dict[str, _Tool], name: str, path: str, evidence: str, at_ms: int) -> None:
    tool = tools.setdefault(name, _Tool())
    tool.paths[path] = None
    tool.at_ms = max(tool.at_ms, at_ms)
    if evidence not in tool.evidence:
        tool.evidence.append(evidence)


def _is_state(path: str) -> bool:
    """Whether it is still there; a folder only where it is empty: else its files are named."""
    try:
        return not os.listdir(path) if path.endswith("/") else os.path.lexists(path)
    except OSError:
        return False


def _row(home: AgentHome, name: str, tool: _Tool) -> Surface:
    paths = list(tool.paths)
    more, rest = len(paths) - SHOWN_MAX, len(paths) - NAMED_MAX
    return Surface(
        id=f"files/{name}",
        kind=KIND,
        holds=f"{counted(len(paths), 'file', 'files')} that the tool {name} writes",
        where=", ".join(paths[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else ""),
        owner=home.name,
        domain=THIS_MACHINE,
        evidence="; ".join(tool.evidence),
        evidence_ms=tool.at_ms or None,
        verdict=Verdict.UNCOVERED,
        why=f"no backup has {', '.join(paths[:NAMED_MAX])}" + (f" and {rest} more" if rest > 0 else ""),
        fix="holdfast explain scratch-files",
    )
