"""`holdfast identity show`, and the summary that other verbs print at the end."""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import os
from typing import TYPE_CHECKING, Any

from holdfast.cli.screen.screen import print_fields, print_json, talk
from holdfast.errors import LogDamaged, LogMissing
from holdfast.identity.acts.log_act import ActResult, LogSession, refresh
from holdfast.identity.files.own_log import find_pending, read_own_log, rewrite_own_log
from holdfast.identity.files.public_file import Identity, read_identity
from holdfast.identity.log.log_state import KeyLog, find_liars, is_final
from holdfast.identity.paper.sheets import SheetRegister
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.witness.open_witnesses import open_witnesses
from holdfast.layout.agent_home import AgentHome, home_folder, load_home

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(args: argparse.Namespace) -> int:
    home = load_home(home_folder(args.home))
    silent: Mapping[str, str] = {}
    if args.fetch:
        silent = asyncio.run(fetch(home))
    log = read_own_log(home.folder, Sodium())
    shown = shape(home, log, read_identity(home.identity_file))
    if args.json:
        print_json(shown)
        return 0
    for place, why in silent.items():
        talk(f"witness {place}: {why}")
    print_fields(_lines(shown))
    return 0


async def fetch(home: AgentHome) -> Mapping[str, str]:
    """Write the own copy again from all witnesses that answer; a damaged copy is ignored."""
    reached = open_witnesses(home.witnesses, port=Sodium())
    try:
        log = read_own_log(home.folder, Sodium())
    except LogDamaged:
        from holdfast.identity.files.found_log import read_logs

        found = [one.log for one in await read_logs((), reached, port=Sodium())]
        log = _ours(home, found)
        if log is None:
            raise
    session = LogSession(home=home, port=Sodium(), reached=reached, log=log)
    silent = await refresh(session)
    rewrite_own_log(home.folder, session.log)
    session.show()
    return silent


def _ours(home: AgentHome, found: list[KeyLog]) -> KeyLog | None:
    """The log of this agent: as identity.json names it, or the only one that the witnesses have."""
    try:
        id_ = read_identity(home.identity_file).id
    except (LogDamaged, LogMissing):
        return found[0] if len(found) == 1 else None
    return next((one for one in found if one.id == id_), None)


def shape(home: AgentHome, log: KeyLog, identity: Identity) -> dict[str, Any]:  # Any: JSON
    try:
        pending = find_pending(home.folder)
    except LogDamaged as error:
        talk(f"{error.message}; {error.hint}")
        pending = None
    head = log.head
    today = dt.datetime.now(dt.UTC).date().isoformat()
    return {
        "name": home.name,
        "id": log.id,
        "standing": log.standing.value,
        "head": {
            "g": log.position.g,
            "s": log.position.s,
            "digest": head.digest,
            "final": is_final(log, log.position),
            "receipts": len(head.receipts),
        },
        "witnesses": list(head.witnesses.members),
        "needed": head.witnesses.needed,
        "liars": list(find_liars(log)),
        "evidence": len(log.evidence),
        "pending": None if pending is None else list(pending.record.position),
        "handles": list(identity.handles),
        "relays": list(identity.relays),
        "paper": _paper(identity.paper, today),
        "imported": None if identity.imported is None else identity.imported.kind,
        "vault": str(home.vault or ""),
        "vault_is_here": bool(home.vault and os.path.isdir(home.vault)),
        "second": str(home.second or ""),
    }


def report(home: AgentHome, done: ActResult, *, as_json: bool) -> None:
    """The log after a change."""
    if as_json:
        print_json(shape(home, done.log, read_identity(home.identity_file)))
        return
    g, s = done.log.position
    print_fields(
        [
            ("id", done.log.id),
            ("standing", done.log.standing.value),
            ("head", f"({g}, {s})"),
            ("receipts", str(done.receipts)),
        ]
    )
    for place, why in (done.refused or {}).items():
        talk(f"witness {place}: {why}")


def _paper(register: SheetRegister, today: str) -> str:
    counted = [one for one in register.sheets if not one.revoked]
    if not counted:
        return "none printed"
    return "verified" if register.is_fresh(today) else "not verified in 90 days"


def _lines(shown: dict[str, Any]) -> list[tuple[str, str]]:
    head = shown["head"]
    final = "final" if head["final"] else "not final"
    lines = [
        ("name", shown["name"]),
        ("id", shown["id"]),
        ("standing", shown["standing"]),
        ("head", f"({head['g']}, {head['s']}) {final}, {head['receipts']} receipts"),
        ("witnesses", f"{len(shown['witnesses'])}, {shown['needed']} must confirm"),
        ("paper", shown["paper"]),
        ("vault", shown["vault"] + ("" if shown["vault_is_here"] else " (not here)")),
        ("second", shown["second"]),
    ]
    if shown["pending"] is not None:
        lines.append(("pending", f"{tuple(shown['pending'])}: run the same command again"))
    if shown["imported"]:
        lines.append(("key", f"imported ({shown['imported']}): rotate soon"))
    if shown["evidence"]:
        lines.append(("evidence", f"{shown['evidence']} rejected records"))
    if shown["liars"]:
        lines.append(("liars", ", ".join(shown["liars"])))
    return lines
