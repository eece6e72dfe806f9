"""`holdfast identity show`, `answer` and `check-answer`, and the summary that other verbs print at the end."""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import os
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import acting_home, home_of
from holdfast.cli.input.agent_places import path_of, read_log_file
from holdfast.cli.input.input_slots import open_existing
from holdfast.cli.input.input_values import read_text
from holdfast.cli.screen.screen import print_fields, print_json, talk
from holdfast.core.clock import SystemClock, iso
from holdfast.errors import BadInput, BadRecord, LogDamaged, LogMissing, VaultMissing
from holdfast.identity.acts.log_act import ActResult, LogSession, refresh
from holdfast.identity.files.own_log import find_pending, read_logs, read_own_log, rewrite_own_log
from holdfast.identity.files.public_file import Identity, read_identity
from holdfast.identity.log.log import replay
from holdfast.identity.log.log_state import KeyLog, find_liars, is_final
from holdfast.identity.paper.sheets import SheetRegister
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.records import LogPosition
from holdfast.identity.speaker.open_speaker import VaultSpeaker
from holdfast.identity.speaker.signer_client import SignerClient, SignerSpeaker
from holdfast.identity.statements.statements import find_fault_in_answer, parse_answer
from holdfast.identity.witness.open_witnesses import open_witnesses
from holdfast.layout.agent_home import AgentHome

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(args: argparse.Namespace) -> int:
    home = home_of(args)
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
        ids = _own_id(home)
        found = [one.log for one in await read_logs((), reached, port=Sodium(), ids=ids)]
        ours = [one for one in found if one.id in ids] if ids else found
        if len(ours) != 1:
            raise
        log = ours[0]
    session = LogSession(home=home, port=Sodium(), reached=reached, log=log)
    silent = await refresh(session)
    rewrite_own_log(home.folder, session.log)
    session.show()
    return silent


def _own_id(home: AgentHome) -> tuple[AgentId, ...]:
    """As identity.json names it; empty where that cannot be read: then it is the only one that the witnesses have."""
    try:
        return (AgentId(read_identity(home.identity_file).id),)
    except (LogDamaged, LogMissing):
        return ()


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
    log, (g, s) = done.log, done.log.position
    head, receipts = f"({g}, {s})", str(done.receipts)
    print_fields([("id", log.id), ("standing", log.standing.value), ("head", head), ("receipts", receipts)])
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
        lines.append(("pending", f"{LogPosition(*shown['pending'])}: run the same command again"))
    if shown["imported"]:
        lines.append(("key", f"imported ({shown['imported']}): rotate soon"))
    if shown["evidence"]:
        lines.append(("evidence", f"{shown['evidence']} rejected records"))
    if shown["liars"]:
        lines.append(("liars", ", ".join(shown["liars"])))
    return lines


def run_answer(args: argparse.Namespace) -> int:
    home = acting_home(args)
    if home.signer is not None:
        signer = SignerSpeaker(SignerClient(home.signer))
        print(signer.answer(args.challenge, asker=args.asker).line().decode())
        return 0
    if home.vault is None:
        raise VaultMissing(f"{home.settings_file} has no setting `vault` under [identity]")
    with open_existing(home.vault, "--passphrase-fd", args.passphrase_fd, what="the vault") as vault:
        speaker = VaultSpeaker(vault, read_log=lambda: read_own_log(home.folder, Sodium()), clock=SystemClock())
        print(speaker.answer(args.challenge, asker=args.asker).line().decode())
    return 0


def run_check(args: argparse.Namespace) -> int:
    copy = read_log_file(path_of(args.log))
    try:
        log = replay(enumerate(copy.records, 1), enumerate(copy.receipts, 1), port=Sodium())
        answer = parse_answer(read_text(args.answer, what="--answer").encode())
    except BadRecord as error:
        raise BadInput(error.message) from error
    if log is None:
        raise BadInput(f"{args.log} contains no key log")
    if args.id and args.id.lower() != log.id:
        raise BadInput(f"this is the key log of another agent: {log.id}")
    now = SystemClock().wall_ms() // 1000
    fault = find_fault_in_answer(answer, log, challenge=args.challenge, now=now, port=Sodium(), asker=args.asker)
    if fault is not None:
        raise BadInput(f"not a valid answer of {log.id}: {fault.message}", hint="it proves nothing")
    final = is_final(log, log.position)
    if not final:
        talk(
            "the newest record of this log has no witness receipts: anyone with the previous keys "
            "could have made it. Ask a witness, or put receipts.jsonl next to the log"
        )
    at = answer.record.at
    shown = {"id": log.id, "g": log.position.g, "s": log.position.s, "at": at, "time": iso(at * 1000), "final": final}
    head = f"({log.position.g}, {log.position.s}) {'final' if final else 'not final'}"
    print_json(shown) if args.json else print_fields([("id", log.id), ("answers", "yes"), ("head", head)])
    return 0
