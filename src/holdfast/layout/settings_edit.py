"""Changing holdfast.toml for a person: the name and [identity], and nothing else of it.

The text of everything else stays as it was written, comments too. What comes out is parsed again
and compared before it replaces the file; where the two differ the file is left alone, and the
person is told what to write.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import BadSettings
from holdfast.host.private_files import write_atomically
from holdfast.layout.agent_settings import IdentitySettings
from holdfast.layout.settings import read_agent_settings, read_fields

_SECTION = re.compile(r"^\[identity\][^\n]*\n(?:(?!\[)[^\n]*(?:\n|\Z))*", re.MULTILINE)
_AGENT = re.compile(r"^agent\s*=[^\n]*(?:\n|\Z)", re.MULTILINE)


def write_identity_settings(path: Path, *, name: str, identity: IdentitySettings) -> None:
    """Set `agent` and [identity]; the file is made where there is none. Safe to repeat.

    Raises BadSettings where the file names another agent, or cannot be changed in this way.
    """
    old = ""
    if os.path.lexists(path):
        known = read_fields(path).get("agent", name)
        if known != name:
            raise BadSettings(f"{path} is of the agent {known!r}, not {name!r}")
        if read_agent_settings(path).identity == identity and "agent" in read_fields(path):
            return
        old = path.read_text()
    new = edited(old, name=name, identity=identity)
    if new is None:
        lines = "".join(_lines(identity))
        raise BadSettings(f"{path} cannot be changed by a program", hint=f"write this into it:\n{lines}")
    write_atomically(path, new.encode())
    if read_agent_settings(path).identity != identity:
        raise BadSettings(f"{path} does not say what was just written to it")


def edited(old: str, *, name: str, identity: IdentitySettings) -> str | None:
    """The text with these settings; None where that would change anything else."""
    rest = _AGENT.sub("", _SECTION.sub("", old), count=1).strip("\n")
    section = "".join(_lines(identity))
    new = f"agent = {_text(name)}\n\n" + (f"{rest}\n\n" if rest else "") + section
    wanted = {**tomllib.loads(old), "agent": name, "identity": msgspec.to_builtins(identity)}
    try:
        found: dict[str, Any] = tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        return None
    return new if _plain(found) == _plain(wanted) else None


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _lines(identity: IdentitySettings) -> list[str]:
    fields = msgspec.to_builtins(identity)
    return ["[identity]\n", *(f"{key} = {_value(value)}\n" for key, value in fields.items())]


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"  # pyright: ignore[reportUnknownArgumentType]
    return _text(value)


def _text(value: object) -> str:
    """A basic string of TOML; JSON escapes what TOML does, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
