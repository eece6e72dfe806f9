"""The parts of an agent's folder that people and frameworks know by name.

Only for telling a person what was found: nothing is read differently because of its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Of the folder itself, by name; the way agents of several frameworks are laid out.
FILES: Mapping[str, str] = {
    "SOUL.md": "who the agent is",
    "IDENTITY.md": "its name and nature",
    "AGENTS.md": "instructions",
    "CLAUDE.md": "instructions",
    "USER.md": "whom it works for",
    "TOOLS.md": "notes on its tools",
    "MEMORY.md": "long-term memory",
    "HEARTBEAT.md": "what it looks at on each beat",
    "BOOTSTRAP.md": "its first start",
    "TODO.md": "what is to be done",
    "handoff.md": "a hand-off of its own",
    "identity.json": "an identity of its own",
    "package.json": "a Node project",
    "Cargo.toml": "a Rust project",
    "pyproject.toml": "a Python project",
    "go.mod": "a Go project",
}
FOLDERS: Mapping[str, str] = {
    "memory": "daily log",
    "sessions": "sessions",
    "skills": "skills",
    ".claude": "settings and sessions of Claude Code",
    ".git": "history of git",
    ".openclaw": "settings of OpenClaw",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One known thing in the folder."""

    path: str
    what: str
    files: int = 1


def known_parts(paths: Iterable[tuple[str, bool]]) -> list[Part]:
    """The known parts among these relative paths (and whether each is a folder), by path."""
    found: dict[str, Part] = {}
    for path, folder in paths:
        top, _, below = path.partition("/")
        if not below and not folder and path in FILES:
            found[path] = Part(path=path, what=FILES[path])
        elif top in FOLDERS and (below or folder):
            known = found.get(f"{top}/", Part(path=f"{top}/", what=FOLDERS[top], files=0))
            count = known.files + (0 if folder else 1)
            found[known.path] = Part(path=known.path, what=known.what, files=count)
    return [found[path] for path in sorted(found)]
