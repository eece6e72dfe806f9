"""Folders of agents as other frameworks leave them, and a record of every byte and mode in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

Snapshot = dict[str, tuple[int, int, int, object]]


def snapshot(folder: Path) -> Snapshot:
    """Mode, owner, time of change and contents of everything below the folder."""
    found: Snapshot = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root) / name
            status = path.lstat()
            what: object = None
            if stat.S_ISLNK(status.st_mode):
                what = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                what = path.read_bytes()
            key = path.relative_to(folder).as_posix()
            found[key] = (status.st_mode, status.st_uid, status.st_mtime_ns, what)
    return found


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)


def openclaw(folder: Path) -> None:
    write(
        folder,
        {
            "SOUL.md": "# Soul\nI am Claw.\n",
            "IDENTITY.md": "Name: Claw\n",
            "AGENTS.md": "Be kind.\n",
            "USER.md": "Works for Eve.\n",
            "TOOLS.md": "- camera\n",
            "MEMORY.md": "# Memory\n- We decided to use SQLite.\n",
            "HEARTBEAT.md": "# Beat\n- [ ] water the plants\n- [x] mail\n",
            "memory/2026-11-14.md": "- [ ] call the bank\n",
            "memory/2026-11-15.md": "- 10:00 agreed on blue\n- 10:05 painting\n",
            "sessions/a1.jsonl": '{"role":"user","content":"hi"}\n',
            "agents/main/agent/auth-profiles.json": '{"token":"t"}',
            ".env": "KEY=1\n",
            "skills/paint/SKILL.md": "# Paint\n",
        },
    )
    db: Any = apsw.Connection(str(folder / "memory" / "main.sqlite"))
    db.pragma("user_version", 1)
    db.close()


def claude(folder: Path) -> None:
    write(
        folder,
        {
            "CLAUDE.md": "# Project\nUse tabs.\n",
            ".claude/settings.json": "{}",
            ".claude/agents/reviewer.md": "Review.\n",
            ".git/HEAD": "ref: refs/heads/main\n",
            "src/main.py": "print(1)\n",
            "TODO.md": "- [ ] release\n",
            "id_ed25519": "secret",
            "identity.json": '{"mine": true}',
            "handoff.md": "my own hand-off\n",
        },
    )
    (folder / ".claude" / "CLAUDE.md").symlink_to("../CLAUDE.md")


def node(folder: Path) -> None:
    write(
        folder,
        {
            "package.json": '{"name": "bot"}',
            "index.mjs": "console.log(1)\n",
            "node_modules/left-pad/index.js": "x",
            "data/state.json": "{}",
            "Cargo.toml": "[package]\nname = 'bot'\n",
            "src/main.rs": "fn main() {}\n",
            "target/CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n",
            "target/debug/bot": "ELF",
        },
    )
    (folder / "src" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "src" / "run.sh").chmod(0o755)


MADE: dict[str, Callable[[Path], None]] = {"openclaw": openclaw, "claude": claude, "node": node}
