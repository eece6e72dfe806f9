"""`instances.jsonl` in the agent's home: the newest roster that this host knows (statements/roster.py).

One line; more only where two rosters of one rank differ. It is in backups, beside the key log at every place, and in
the journal that hosts share. Whatever is found there is joined with what is here: the order does not matter.
A line that cannot be read says nothing, as one that is not signed by the agent's keys does.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holdfast.host.private_files import read_private, write_atomically
from holdfast.identity.files.own_log import home_lock
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.statements.roster import VERSIONS_MAX, RosterView, join_rosters

ROSTER = "instances.jsonl"
FILE_BYTES_MAX = (VERSIONS_MAX + 1) * (LINE_BYTES_MAX + 1)


def roster_lines(home_folder: Path) -> tuple[bytes, ...]:
    """As they are stored, unchecked: for a copy elsewhere."""
    try:
        raw = read_private(home_folder / ROSTER, FILE_BYTES_MAX)
    except FileNotFoundError:
        return ()
    return tuple(line for line in raw.splitlines() if line)


def read_roster(home_folder: Path, log: KeyLog, port: Signatures) -> RosterView:
    """The roster that counts for this log; an empty one where there is none."""
    return join_rosters(roster_lines(home_folder), log, port=port)


def join_roster(home_folder: Path, lines: Iterable[bytes], log: KeyLog, port: Signatures) -> RosterView:
    """What counts after these lines were heard too; durable on return. Safe to repeat. A roster that stopped to count
    stays in the file until another one counts: it says which instances there were."""
    with home_lock(home_folder):
        held = roster_lines(home_folder)
        view = join_rosters((*held, *lines), log, port=port)
        if view and view.lines() != held:
            write_atomically(home_folder / ROSTER, b"".join(line + b"\n" for line in view.lines()))
    return view
