"""What Holdfast keeps beside the memory files: the version last written, and how far it is.

One small file per memory file has the version that our last write left (the base of the next
merge) and the lines that recent writes brought in; one for all has the position in the journal's
remarks with that remark's hash. They get their names after what they describe, so a crash leaves them
behind the truth, never before it; the next version of a file's sidecar is written before the file, and
waits beside it (`projection.py`). A sidecar that is missing or cannot be read is none: what is lost is
history, never a line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from holdfast.core.decoding import convert
from holdfast.host.private_files import explained, sync_folder, write_atomically
from holdfast.memory.lines import Added, Gone
from holdfast.memory.shared_lines import NEVER, MergedAt

FORMAT = 1
REPORTS_MAX = 200
SIDECAR_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known of one memory file. `base` is None where nothing is known."""

    base: str | None = None
    write: int = 0  # counts our writes
    life: str = ""  # which sidecar counts them: one that took the place of a lost one is another
    merged: MergedAt = NEVER  # the last write that merged with a document
    recent: tuple[Added, ...] = field(default=())
    gone: tuple[Gone, ...] = field(default=())
    taken: dict[str, str] = field(default_factory=dict[str, str])  # asides that are merged: their names and hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Up to which remark the files are written, and its hash."""

    journal_id: str = ""
    number: int = 0
    link: str = ""


def load_state(path: Path) -> State:
    fields = _load(path)
    try:
        base = fields["base"]
        if not isinstance(base, str):
            return State()
        recent = convert(fields["recent"], tuple[Added, ...])
        gone = convert(fields.get("gone", ()), tuple[Gone, ...])
        taken = convert(fields.get("taken", {}), dict[str, str])
        write, life = convert(fields["write"], int), convert(fields.get("life", ""), str)
        merged_at = convert(fields.get("merged", (0, "")), tuple[int, str])
        merged = (*merged_at, convert(fields.get("merged_without", ()), tuple[str, ...]))
        return State(base=base, write=write, life=life, merged=merged, recent=recent, gone=gone, taken=taken)
    except (KeyError, msgspec.ValidationError):
        return State()


def save_state(path: Path, state: State) -> None:
    write_atomically(path, state_bytes(state))


def put_state(path: Path, note: Path) -> None:
    """Give the sidecar its next version, which was written before."""
    try:
        os.replace(note, path)
        sync_folder(path.parent)
    except OSError as error:
        raise explained(error, path) from error


def state_bytes(state: State) -> bytes:
    recent = msgspec.to_builtins(state.recent)
    more = {"life": state.life, "gone": msgspec.to_builtins(state.gone), "taken": state.taken}
    more |= {"merged": state.merged[:2] if state.merged[0] else None, "merged_without": state.merged[2]}
    more = {name: value for name, value in more.items() if value}
    return _encoded({"base": state.base, "write": state.write, "recent": recent, **more})


def load_position(path: Path) -> Position:
    fields = _load(path)
    fields.pop("format", None)
    try:
        return convert(fields, Position)
    except msgspec.ValidationError:
        return Position()


def save_position(path: Path, position: Position) -> None:
    write_atomically(path, _encoded(msgspec.to_builtins(position)))


def add_reports(path: Path, reports: Sequence[dict[str, object]]) -> None:
    """Keep what a person may want to know of merges; the newest REPORTS_MAX."""
    if reports:
        lines = [json.dumps(one) for one in (*read_reports(path), *reports)][-REPORTS_MAX:]
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def read_reports(path: Path) -> list[dict[str, object]]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found: list[dict[str, object]] = []
    for line in lines:
        try:
            found.append(cast("dict[str, object]", json.loads(line)))
        except ValueError:
            continue
    return found


def _load(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > SIDECAR_BYTES_MAX:
            return {}
        fields: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    known = cast("dict[str, object]", fields) if isinstance(fields, dict) else {}
    return known if known.get("format") == FORMAT else {}


def _encoded(fields: dict[str, object]) -> bytes:
    # Escaped: a file that is not UTF-8 has lone surrogates in its text.
    return json.dumps({"format": FORMAT, **fields}).encode() + b"\n"
