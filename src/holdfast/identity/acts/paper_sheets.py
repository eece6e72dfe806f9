"""The paper of an agent: sheets are numbered and printed, read back, revoked; a card is made.

The words come from a person each time and are in this process's memory alone: no file of the
agent holds them. They are compared with the agent's own log before anything is printed, so that
no sheet is made of words that would recover nothing.

Order of acts. Printing: the numbers are written to the register first, the pages are handed out
after; a crash between the two leaves a number without a sheet, never a sheet without a number.
Reading back: the register is changed after the key derived from the paper had the digest that
the log names; then the agent's own key signs that it was read, so that no one can write a date by hand.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import BadInput, BadPhrase, BadSheet
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.files.paper_readings import ASKER, add_reading, challenge_of
from holdfast.identity.files.public_file import Identity, change_identity, read_identity
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.derive import PaperFit, PaperKeys, PaperState, paper_fit
from holdfast.identity.paper.paper import Card, ScannedSecret, Sheet, phrase_sheet, share_sheets
from holdfast.identity.paper.phrase import Phrase, read_phrase, repair
from holdfast.identity.paper.shares import Share, combine, split
from holdfast.identity.paper.sheets import PrintedSheet, SheetRegister
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.speaker.speaker import Speaker
from holdfast.layout.agent_home import AgentHome, load_home

HOLDER_CHARS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSession:
    """An agent whose paper is worked on: its log, every signature checked, and what it shows."""

    home: AgentHome
    log: KeyLog
    identity: Identity

    @property
    def register(self) -> SheetRegister:
        return self.identity.paper

    @property
    def generation(self) -> int:
        """The one that a recovery would begin."""
        return len(self.log.generations)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedWords:
    """Words that fit this agent, and what had to be repaired in them. Wipe the phrase."""

    phrase: Phrase
    change: str = ""  # in words for a person; empty where nothing was
    shares: tuple[Share, ...] = ()


def open_paper(folder: Path) -> PaperSession:
    """Raises NotAnAgent, LogMissing, LogDamaged, ModeTooWide and what a wide folder does."""
    home = load_home(folder)
    return PaperSession(home=home, log=read_own_log(folder, Sodium()), identity=read_identity(home.identity_file))


def today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def fit_phrase(session: PaperSession, text: str, passphrase: str = "") -> FittedWords:
    """The words behind a typed text, one mistake repaired, if they are this agent's. Raises BadPhrase (they are not,
    nor within one mistake of them), BadSheet (they were, before a recovery named other words)."""
    try:
        phrase = read_phrase(text)
    except BadPhrase:
        phrase = None
    if phrase is not None:
        found = _fitting(session, phrase, passphrase)
        if found.fit is not PaperState.OTHER:
            _refuse_powerless(found)
            return FittedWords(phrase=phrase)
    repaired = repair(text, lambda one: _fitting(session, one, passphrase).fit is PaperState.CURRENT)
    return FittedWords(phrase=repaired.phrase, change=repaired.change)


def fit_shares(session: PaperSession, shares: Sequence[Share], passphrase: str = "") -> FittedWords:
    """The words behind shares. Raises BadShare; BadPhrase and BadSheet as fit_phrase does."""
    phrase = combine([" ".join(one.words) for one in shares])
    found = _fitting(session, phrase, passphrase)
    if found.fit is PaperState.OTHER:
        raise BadPhrase(
            "these shares are complete, but belong to another agent",
            hint="compare the id on the sheets; if the sheets have a passphrase, give it too",
        )
    _refuse_powerless(found)
    return FittedWords(phrase=phrase, shares=tuple(shares))


def check_same_agent(session: PaperSession, secret: ScannedSecret) -> None:
    """Raises BadSheet where a code names another agent than this one."""
    if not session.log.id.startswith(secret.id_start):
        raise BadSheet(
            f"this sheet belongs to agent {secret.id_start}..., not to {session.log.id}",
            hint="give the folder of that agent with --home",
        )


def print_sheets(
    session: PaperSession,
    phrase: Phrase,
    *,
    date: str,
    parts: tuple[int, int] | None = None,
    holders: Sequence[str] = (),
    has_passphrase: bool = False,
    backups: Sequence[str] = (),
) -> list[Sheet]:
    """New sheets, numbered in the register; `parts` is how many of how many shares are needed, `backups` are places."""
    _check_holders(holders, 1 if parts is None else parts[1])
    shares = [] if parts is None else split(phrase, needed=parts[0], total=parts[1])
    made: list[Sheet] = []

    def numbered(identity: Identity) -> Identity:
        made.clear()
        shown: dict[str, Any] = {
            "name": session.identity.name,
            "agent_id": session.log.id,
            "date": date,
            "generation": session.generation,
            "number": identity.paper.next_number,
            "has_passphrase": has_passphrase,
            "backups": tuple(backups),
        }
        if shares:
            made.extend(share_sheets(shares, holders=holders, **shown))
        else:
            made.append(phrase_sheet(phrase, holder=holders[0] if holders else "", **shown))
        paper = identity.paper.printed(*map(_entry, made))
        return msgspec.structs.replace(identity, paper=paper)

    change_identity(session.home.identity_file, numbered)
    return made


def sheets_read(session: PaperSession, words: FittedWords, number: int | None) -> list[int]:
    """The numbers of the sheets that were read back; of several with the same words, the newest unless one is named.
    Raises BadInput where none was printed, or the one that is named is another."""
    if words.shares:
        found = [session.register.find_share(one.document, one.number) for one in words.shares]
        numbers = [one.number for one in found if one is not None]
        if len(numbers) != len(words.shares):
            raise BadInput(
                "these shares are correct, but the register lists no printed sheets with them",
                hint="print them with `holdfast paper print --shares`",
            )
        return numbers
    sheets = [one.number for one in session.register.current() if not one.document]
    if number is not None:
        if session.register.get(number).document:
            raise BadInput(f"sheet {number} is a share; its words are not the whole phrase")
        return [number]
    if not sheets:
        raise BadInput(
            "the words are correct, but the register lists no printed sheet with them",
            hint="print one with `holdfast paper print`",
        )
    return [max(sheets)]


def mark_verified(
    session: PaperSession, numbers: Sequence[int], *, date: str, speaker: Speaker | None = None
) -> SheetRegister:
    """These sheets were read back. Without a speaker no key signs it: then it is noted, and proves nothing."""
    after = _changed(session.home, numbers, lambda register, number: register.verified(number, date=date))
    if speaker is not None:
        for number in numbers:
            answer = speaker.answer(challenge_of(after.get(number), date=date), asker=ASKER)
            add_reading(session.home, answer)
    return after


def mark_revoked(session: PaperSession, numbers: Sequence[int], *, date: str) -> SheetRegister:
    """These sheets count no more; shares of one split go together."""
    return _changed(session.home, numbers, lambda register, number: register.revoked(number, date=date))


def make_card(session: PaperSession, *, date: str, backups: Sequence[str] = (), contact: str = "") -> Card:
    """The public card: the inception, every recovery, and where to look (`backups`: places)."""
    return Card(
        name=session.identity.name,
        agent_id=session.log.id,
        date=date,
        generation=session.generation,
        records=tuple(one.tier.signed.line() for one in session.log.generations),
        handles=session.identity.handles,
        relays=session.identity.relays,
        backups=tuple(backups),
        contact=contact,
    )


def _fitting(session: PaperSession, phrase: Phrase, passphrase: str) -> PaperFit:
    with PaperKeys(phrase, passphrase) as keys:
        return paper_fit(keys, session.log)


def _refuse_powerless(found: PaperFit) -> None:
    if found.fit is PaperState.REPLACED:
        raise BadSheet(
            f"this sheet is no longer valid: the recovery of generation {found.generation} replaced its words",
            hint="destroy this sheet and use the newer one; `holdfast paper list` shows its number",
        )
    if found.fit is PaperState.RETIRED:
        raise BadSheet(
            "the identity is retired: no sheet can recover it", hint="nothing can recover a retired identity"
        )


def _check_holders(holders: Sequence[str], total: int) -> None:
    if len(holders) > total:
        raise BadInput(f"you gave {len(holders)} holders for {total} sheets; give at most one for each sheet")
    for one in holders:
        if not one.isprintable() or len(one) > HOLDER_CHARS_MAX:
            raise BadInput(f"a holder's name must be one line of at most {HOLDER_CHARS_MAX} characters")


def _entry(sheet: Sheet) -> PrintedSheet:
    document, needed = (sheet.share.document, sheet.share.needed) if sheet.share else ("", 1)
    return PrintedSheet(
        number=sheet.number,
        date=sheet.date,
        generation=sheet.generation,
        holder=sheet.holder,
        document=document,
        needed=needed,
    )


def _changed(
    home: AgentHome, numbers: Sequence[int], change: Callable[[SheetRegister, int], SheetRegister]
) -> SheetRegister:
    def each(identity: Identity) -> Identity:
        return msgspec.structs.replace(identity, paper=reduce(change, numbers, identity.paper))

    return change_identity(home.identity_file, each).paper
