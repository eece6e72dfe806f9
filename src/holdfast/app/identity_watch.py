"""Compares an agent's log with its witnesses: for `holdfast doctor` and monitors.

Reads only. A record that the home did not make is a sign of stolen recovery words or a stolen next
key, so every witness is asked, and one that does not answer is reported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from holdfast.app.doctor import Finding, damage, ok, warning
from holdfast.errors import HoldfastError
from holdfast.identity.acts.log_act import LogSession, refresh
from holdfast.identity.acts.paper_sheets import today
from holdfast.identity.files.own_log import find_pending, read_own_log
from holdfast.identity.files.public_file import read_identity
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.vault.slots import find_unattended, ways_in
from holdfast.identity.vault.vault import read_slots
from holdfast.identity.witness.observe import ForeignRecord, SigningPower, find_foreign_records
from holdfast.identity.witness.open_witnesses import open_witnesses
from holdfast.layout.agent_home import AgentHome

_MEND = {
    SigningPower.PAPER: "if it was not you, someone else has the recovery words; recover with newer words if you "
    "have them, and see docs/how-to/recovery.md",
    SigningPower.NEXT: "if it was not you: `holdfast identity recover` evicts the thief",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the witnesses showed, and which did not answer, by place."""

    strange: tuple[ForeignRecord, ...]
    answered: int
    silent: dict[str, str]


async def watch_log(home: AgentHome, *, port: Signatures | None = None) -> Watched:
    """Ask every witness that the home names. Raises LogMissing, LogDamaged."""
    port = port or Sodium()
    own = read_own_log(home.folder, port)
    reached = open_witnesses(home.witnesses, port=port)
    session = LogSession(home=home, port=port, reached=reached, log=own)
    silent = await refresh(session)
    pending = find_pending(home.folder)
    return Watched(
        strange=find_foreign_records(own, session.log, () if pending is None else (pending.digest,)),
        answered=sum(str(address) not in silent for address in reached.addresses.values()),
        silent={**reached.unreachable, **silent},
    )


async def examine_identity(home: AgentHome) -> AsyncIterator[Finding]:
    """Findings about log, witnesses and paper, for an agent that has an identity."""
    try:
        watched = await watch_log(home)
        identity = read_identity(home.identity_file)
    except HoldfastError as error:
        yield damage("identity", error.message, error.hint)
        return
    for one in watched.strange:
        yield damage(
            "identity",
            f"{one.what} at {one.position} was not made here" + ("" if one.stands else ", and is not valid"),
            _MEND[one.power],
        )
    for place, why in watched.silent.items():
        yield warning(
            "witness", f"{place} does not answer: {why}", "mount it, or name other witnesses at the next rotation"
        )
    if not watched.strange:
        agree = "1 witness agrees" if watched.answered == 1 else f"{watched.answered} witnesses agree"
        text = f"{identity.id}: {identity.standing}; {agree}"
        yield ok("identity", text)
    vault = _vault(home)
    if vault is not None:
        yield vault
    if identity.paper.is_fresh(today()):
        yield ok("paper", "read back within 90 days")
    else:
        why = "no sheet was read back" + (" in 90 days" if identity.paper.sheets else "")
        yield warning("paper", why, "`holdfast paper verify`" if identity.paper.sheets else "`holdfast paper print`")


def _vault(home: AgentHome) -> Finding | None:
    """Whether the vault is where the settings say, and private; does not open it."""
    if home.vault is None or home.signer is not None:
        return None
    try:
        slots = read_slots(home.vault)
        here = find_unattended(slots)
    except HoldfastError as error:
        return warning("vault", error.message, error.hint)
    kinds = ", ".join(sorted({slot.kind for slot in slots}))
    if here or any(slot.kind == "passphrase" for slot in slots):
        return ok("vault", f"{home.vault}: opened by {kinds}")
    return warning("vault", f"{home.vault}: this machine has nothing that opens it", ways_in(slots))
