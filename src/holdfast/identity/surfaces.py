"""Who the agent is, as rows and facts for the register: vault, key log, witnesses, arbiter, paper, secrets.

Opens no vault. Witnesses are asked, because a record that this home did not make is a sign of stolen keys, and one that
does not answer could not help in a recovery.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.core.surfaces import DAY_MS, Cover, Fact, Found, Surface, Verdict, day_of, in_backups
from holdfast.errors import HoldfastError, VaultMissing
from holdfast.identity.files.own_log import find_pending, read_own_log
from holdfast.identity.files.paper_readings import believed
from holdfast.identity.files.public_file import read_identity
from holdfast.identity.files.roster_file import read_roster
from holdfast.identity.journal_keys.keyfile import is_pointer
from holdfast.identity.journal_keys.secret_file import StoredSecret
from holdfast.identity.log.log_state import KeyLog, is_final
from holdfast.identity.paper.sheets import PrintedSheet, SheetRegister, SheetState, state_of
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.vault.slots import find_unattended, ways_in
from holdfast.identity.vault.vault import exists, read_slots
from holdfast.identity.witness.observe import ForeignRecord, find_foreign_records, merge_copies, records_of
from holdfast.identity.witness.open_witnesses import fetch_copies, open_witnesses
from holdfast.layout.agent_home import AgentHome

VERIFY = "holdfast paper verify"
PRINT = "holdfast paper print"
DOCTOR = "holdfast doctor"
LEASE = "lease.json"  # app.agent_lease.LEASE: a worker here has asked the arbiter
MORE_WITNESSES = "holdfast identity rotate --witness FOLDER --witness FOLDER --witness FOLDER"
SHOW = "holdfast identity show --fetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the witnesses showed, and which did not answer, by place."""

    log: KeyLog  # the agent's own
    strange: tuple[ForeignRecord, ...]
    holding: frozenset[str]  # addresses of those that hold the newest record
    answered: int
    silent: dict[str, str]


async def watch_log(home: AgentHome, *, port: Signatures | None = None) -> Watched:
    """Ask every witness that the home names. Raises LogMissing, LogDamaged."""
    port = port or Sodium()
    own = read_own_log(home.folder, port)
    reached = open_witnesses(home.witnesses, port=port)
    copies, unheard = await fetch_copies(own.id, reached.by_key)
    silent = {str(reached.addresses[key]): why for key, why in unheard.items()}
    named = (key for entry in own.entries() for keys in entry.needs for key in keys.members)
    asked = frozenset((*reached.by_key, *named))  # one that is gone counts as asked
    seen = merge_copies(own, list(copies.values()), id=own.id, port=port, asked=asked) or own
    pending = find_pending(home.folder)
    holding = [key for key, copy in copies.items() if any(one.digest == own.head.digest for one in records_of(copy))]
    return Watched(
        log=own,
        strange=find_foreign_records(own, seen, () if pending is None else (pending.digest,)),
        holding=frozenset(str(reached.addresses[key]) for key in holding),
        answered=len(reached.addresses) - len(silent),
        silent={**reached.unreachable, **silent},
    )


@dataclass(frozen=True, slots=True)
class VaultLook:
    """The vault from outside: what opens it, and whether this machine has one of them."""

    kinds: str
    opens_here: bool  # by this machine, or by a person's passphrase
    hint: str = ""


def look_at_vault(folder: Path) -> VaultLook:
    """Raises VaultMissing, VaultDamaged, ModeTooWide and the like; opens nothing."""
    slots = read_slots(folder)
    here = bool(find_unattended(slots)) or any(slot.kind == "passphrase" for slot in slots)
    return VaultLook(", ".join(sorted({slot.kind for slot in slots})), here, ways_in(slots))


async def found_identity(home: AgentHome, *, now_ms: int) -> Found:
    """All of it; nothing where the agent has no identity."""
    if home.vault is None or not os.path.lexists(home.log_file):
        return Found()
    try:
        paper = read_identity(home.identity_file).paper
        watched = await watch_log(home)
    except HoldfastError as error:
        broken = _log_row(home, Verdict.AT_RISK, error.message, fix=DOCTOR)
        fact = Fact(name="identity.log", value=False, at_ms=now_ms, source=error.message)
        return Found(surfaces=(broken,), facts=(fact,))
    read = believed(home, watched.log, paper, port=Sodium())
    rows = [*_vault_rows(home, read, now_ms), *_log_rows(home, watched), *_paper_rows(read, paper, now_ms)]
    return Found(surfaces=tuple(rows), facts=tuple(_facts(home, read, watched, now_ms)))


def _vault_rows(home: AgentHome, paper: SheetRegister, now_ms: int) -> list[Surface]:
    rows = [_vault_row(home, paper, now_ms)]
    if home.second is not None:
        verdict, why, fix = _by_paper(paper, now_ms)
        if not exists(home.second):
            why, fix = f"not there now: mount {home.second} to rotate keys; {why}", fix or SHOW
            verdict = Verdict.AT_RISK if verdict is Verdict.COVERED else verdict
        second = Surface(
            id="vault/second",
            kind="second place",
            holds="the next key",
            where=str(home.second),
            protection="paper" if paper.current() else "",
            verdict=verdict,
            why=why,
            fix=fix,
        )
        rows.append(second)
    return rows


def _by_paper(paper: SheetRegister, now_ms: int) -> tuple[Verdict, str, str]:
    """What the paper does for keys that are lost: verdict, why, and what to do."""
    if paper.is_fresh(day_of(now_ms)):
        return Verdict.COVERED, "a sheet that was read back brings the identity back", ""
    if paper.current():
        return Verdict.AT_RISK, "no sheet was read back in 90 days", VERIFY
    return Verdict.UNCOVERED, "no sheet was printed: lost keys cannot be recovered", PRINT


def _vault_row(home: AgentHome, paper: SheetRegister, now_ms: int) -> Surface:
    assert home.vault is not None  # the caller has looked
    try:
        opened = f"opened by {look_at_vault(home.vault).kinds}" if home.signer is None else "opened by the signer"
        verdict, why, fix = _by_paper(paper, now_ms)
    except HoldfastError as error:
        lost = isinstance(error, VaultMissing) and not paper.current()
        opened, fix = "", DOCTOR
        verdict = Verdict.UNCOVERED if lost else Verdict.AT_RISK
        why = f"{error.message}; no sheet was printed: lost keys cannot be recovered" if lost else error.message
    return Surface(
        id="vault",
        kind="vault",
        holds="signing, journal and backup keys",
        where=str(home.vault),
        protection="paper, escrow" if paper.current() else "",
        evidence=opened,
        evidence_ms=read_back_ms(paper, now_ms=now_ms),
        verdict=verdict,
        why=why,
        fix=fix,
    )


def _log_row(home: AgentHome, verdict: Verdict, why: str, *, evidence: str = "", fix: str = "") -> Surface:
    return Surface(
        id="key-log",
        kind="key log",
        holds="which keys act for the agent",
        where=str(home.log_file),
        protection="witnesses, backup",
        evidence=evidence,
        verdict=verdict,
        why=why,
        fix=fix,
    )


def _log_rows(home: AgentHome, watched: Watched) -> list[Surface]:
    needed = watched.log.head.witnesses.needed
    evidence = _held(watched)
    if watched.strange:
        why = f"{watched.strange[-1].what} at {watched.strange[-1].position} was not made here"
        rows = [_log_row(home, Verdict.AT_RISK, why, evidence=evidence, fix=DOCTOR)]
    elif is_final(watched.log, watched.log.position) and len(watched.holding) >= needed:
        rows = [_log_row(home, Verdict.COVERED, "enough witnesses hold the newest record", evidence=evidence)]
    else:
        why = "too few witnesses hold the newest record"
        rows = [_log_row(home, Verdict.AT_RISK, why, evidence=evidence, fix=SHOW)]
    rows += [_witness_row(str(one), watched, alone=len(home.witnesses) == 1) for one in home.witnesses]
    rows += _roster_rows(home, watched.log)
    if home.arbiter is not None:
        asked = (home.instance / LEASE).exists()
        kept = home.arbiter / f"{watched.log.id}.json" if asked else home.arbiter.parent  # a first lease makes it
        there = kept.exists()
        arbiter = Surface(
            id="arbiter",
            kind="arbiter",
            holds="which instance may act",
            where=str(home.arbiter),
            protection="a recovery makes a new one",
            verdict=Verdict.COVERED if there else Verdict.AT_RISK,
            why=("there" if asked else "no instance has asked it yet: the first lease makes it")
            if there
            else "not there now: no instance gets a lease",
            fix="" if there else DOCTOR,
        )
        rows.append(arbiter)
    return rows


def _roster_rows(home: AgentHome, log: KeyLog) -> list[Surface]:
    """Nothing where the agent has one instance."""
    view = read_roster(home.folder, log, Sodium())
    if not view:
        return []
    names = ", ".join(f"{one.name} ({one.role.value})" for one in view.enrolled)
    why = "only what two rosters of one version both say counts" if view.forked else "signed by the agent's keys"
    roster = Surface(
        id="roster",
        kind="roster",
        holds=f"which instances are enrolled: {names or 'none'}",
        where=str(home.roster_file),
        protection="other instances, backup",
        evidence=f"version {view.rank[2]} at {log.position}",
        verdict=Verdict.AT_RISK if view.forked else Verdict.COVERED,
        why=why,
        fix="holdfast instance list" if view.forked else "",
    )
    return [roster]


def _held(watched: Watched) -> str:
    keys = watched.log.head.witnesses
    return f"{len(watched.holding)} of {len(keys.members)} witnesses hold the newest record; needed: {keys.needed}"


def _witness_row(address: str, watched: Watched, *, alone: bool) -> Surface:
    holds = address in watched.holding
    why = "holds the newest record" if holds else watched.silent.get(address, "does not hold the newest record")
    if alone and holds:
        why = "holds the newest record; it is the only witness, so no other one has its receipts"
    return Surface(
        id=f"witness/{address}",
        kind="witness",
        holds="receipts for the key log",
        where=address,
        protection="" if alone else "other witnesses",
        domain=address,
        verdict=Verdict.COVERED if holds and not alone else Verdict.AT_RISK,
        why=why,
        fix=MORE_WITNESSES if alone and holds else "" if holds else SHOW,
    )


def _paper_rows(paper: SheetRegister, noted: SheetRegister, now_ms: int) -> list[Surface]:
    rows = list[Surface]()
    for sheet in paper.current():
        fresh = state_of(sheet, day_of(now_ms)) is SheetState.VERIFIED
        read = f"read back on {sheet.verified}" if sheet.verified else f"printed on {sheet.date}, never read back"
        if not sheet.verified and (said := noted.get(sheet.number).verified):
            read = f"noted as read back on {said}, but the agent did not sign that"
        row = Surface(
            id=f"paper/{sheet.number}",
            kind="recovery sheet",
            holds=f"a share of {sheet.document}; {sheet.needed} are needed" if sheet.document else "recovery words",
            where=sheet.holder or "with a person",
            owner=sheet.holder or "a person",
            protection="paper",
            domain=sheet.holder or f"sheet {sheet.number}",
            evidence=read,
            verdict=Verdict.COVERED if fresh else Verdict.AT_RISK,
            why=read,
            fix="" if fresh else VERIFY,
        )
        rows.append(row)
    return rows


def _facts(home: AgentHome, paper: SheetRegister, watched: Watched, now_ms: int) -> list[Fact]:
    needed, holding = watched.log.head.witnesses.needed, len(watched.holding)
    inside = _keys_inside(home)
    found = [
        Fact(name="identity.log", value=True, at_ms=now_ms, source=f"the key log is at {watched.log.position}"),
        Fact(name="identity.keys-apart", value=not inside, at_ms=now_ms, source=inside or f"the vault is {home.vault}"),
        Fact(
            name="identity.witnessed",
            value=holding >= needed and not watched.strange,
            at_ms=now_ms,
            source=_held(watched),
        ),
    ]
    whole = [one for one in paper.current() if _is_whole(paper, one)]
    if whole:
        numbers = ", ".join(str(one.number) for one in whole)
        found.append(Fact(name="paper", value=True, at_ms=now_ms, source=f"sheets {numbers} exist"))
    read_ms = read_back_ms(paper, now_ms=now_ms)
    if read_ms is not None:
        source = f"read back on {day_of(read_ms)}"
        found.append(Fact(name="paper.read-back", value=True, at_ms=read_ms, source=source))
    return found


def _keys_inside(home: AgentHome) -> str:
    """Why the agent has no keys apart from its state; empty where it has."""
    if home.vault is not None and home.signer is None and not exists(home.vault):
        return f"the vault {home.vault} is not there now"
    if home.vault is not None and home.vault.is_relative_to(home.state):
        return f"the vault {home.vault} is in the agent's folder"
    try:
        plain = home.keys_file.is_file() and not is_pointer(home.keys_file.read_bytes())
    except OSError:
        plain = False
    return f"{home.keys_file} holds keys of the journal" if plain else ""


def _is_whole(paper: SheetRegister, sheet: PrintedSheet) -> bool:
    together = [one for one in paper.current() if one.document == sheet.document]
    return not sheet.document or len(together) >= sheet.needed


def read_back_ms(paper: SheetRegister, *, now_ms: int) -> int | None:
    """When a sheet, or enough shares of one split, had last been read back; the end of that day."""
    ends = list[str]()
    for sheet in paper.current():
        together = [one for one in paper.current() if sheet.document and one.document == sheet.document] or [sheet]
        dates = sorted((one.verified for one in together if one.verified), reverse=True)
        if len(dates) >= sheet.needed:
            ends.append(dates[sheet.needed - 1])
    if not ends:
        return None
    day = dt.datetime.fromisoformat(max(ends)).replace(tzinfo=dt.UTC)
    return min(now_ms, round(day.timestamp() * 1000) + DAY_MS - 1)


def found_secrets(secrets: Mapping[str, StoredSecret], cover: Cover, *, where: Path, recovered_ms: int) -> Found:
    """Secrets of tools, by name. What a recovery listed stays as not rotated until it gets a new value."""
    rows, facts = list[Surface](), list[Fact]()
    for name, secret in secrets.items():
        row = in_backups(
            f"secret/{name}", "secret", cover, holds="a secret of tools", where=str(where), protection="sealed, backup"
        )
        if secret.versions[-1].created_ms < recovered_ms:
            why = f"not rotated since the recovery of {day_of(recovered_ms)}: holders of the old machine may know it"
            row = msgspec.structs.replace(row, verdict=Verdict.AT_RISK, why=why, fix=f"holdfast secret rotate {name}")
            facts.append(Fact(name="secret.not-rotated", about=name, value=True, at_ms=recovered_ms, source=why))
        rows.append(row)
    return Found(surfaces=tuple(rows), facts=tuple(facts))
