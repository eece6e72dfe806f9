"""Which sheets exist: numbered, verified, revoked. Public: it says nothing about the words.

A number is used once. A sheet counts only after it was read back from paper, and again every 90
days. A new phrase revokes the sheets of the phrase before it; shares of one split are revoked
together, and numbered in the order of their shares. Printing the same words again revokes
nothing: the older sheet still has its power, and a register that said otherwise would lie.
"""

from __future__ import annotations

import datetime as dt
from enum import StrEnum

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import BadInput

FRESH_DAYS = 90
SHEETS_MAX = 1_000


class SheetState(StrEnum):
    UNVERIFIED = "not verified"  # printed, and never read back from the paper
    VERIFIED = "verified"
    STALE = "stale"  # read back more than 90 days ago
    REVOKED = "revoked"


class PrintedSheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    number: int
    date: str
    generation: int
    document: str = ""  # of a share; sheets of one split have the same
    needed: int = 1
    holder: str = ""
    verified: str = ""  # the date of the last reading back
    revoked: str = ""


class SheetRegister(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All sheets ever numbered, oldest first."""

    format: int = 1
    sheets: tuple[PrintedSheet, ...] = ()

    @property
    def next_number(self) -> int:
        return max((one.number for one in self.sheets), default=0) + 1

    def printed(self, *sheets: PrintedSheet) -> SheetRegister:
        """With new sheets; none of them counts before it is verified."""
        used: set[int] = set()
        for one in (*self.sheets, *sheets):
            if one.number in used:
                raise BadInput(f"sheet number {one.number} is already used")
            used.add(one.number)
        if len(self.sheets) + len(sheets) > SHEETS_MAX:
            raise BadInput(f"the register has {len(self.sheets):,} sheets; Holdfast accepts at most {SHEETS_MAX:,}")
        return SheetRegister(sheets=(*self.sheets, *sheets))

    def verified(self, number: int, *, date: str) -> SheetRegister:
        found = self.get(number)
        if found.revoked:
            raise BadInput(
                f"sheet {number} was revoked on {found.revoked}",
                hint="it still holds the old words: destroy it and use the newer sheet",
            )
        return self._with(msgspec.structs.replace(found, verified=_date(date)))

    def revoked(self, number: int, *, date: str) -> SheetRegister:
        """Without this sheet, and without the others of its split."""
        found = self.get(number)
        changed = self
        for one in self.sheets:
            same = one.number == number or (one.document and one.document == found.document)
            if same and not one.revoked:
                changed = changed._with(msgspec.structs.replace(one, revoked=_date(date)))
        return changed

    def get(self, number: int) -> PrintedSheet:
        for one in self.sheets:
            if one.number == number:
                return one
        raise BadInput(f"the register has no sheet {number}")

    def find_share(self, document: str, number: int) -> PrintedSheet | None:
        """The sheet of this share: those of one split are numbered in their order."""
        together = sorted(
            (one for one in self.sheets if document and one.document == document), key=lambda one: one.number
        )
        return together[number - 1] if 1 <= number <= len(together) else None

    def current(self) -> tuple[PrintedSheet, ...]:
        """Those that are not revoked."""
        return tuple(one for one in self.sheets if not one.revoked)

    def is_fresh(self, today: str) -> bool:
        """Whether a sheet, or enough shares of one split, were read back within 90 days."""
        fresh = [one for one in self.sheets if state_of(one, today) is SheetState.VERIFIED]
        for one in fresh:
            together = [other for other in fresh if other.document == one.document]
            if not one.document or len(together) >= one.needed:
                return True
        return False

    def _with(self, sheet: PrintedSheet) -> SheetRegister:
        kept = (sheet if one.number == sheet.number else one for one in self.sheets)
        return SheetRegister(sheets=tuple(kept))


def state_of(sheet: PrintedSheet, today: str) -> SheetState:
    if sheet.revoked:
        return SheetState.REVOKED
    if not sheet.verified:
        return SheetState.UNVERIFIED
    age = dt.date.fromisoformat(_date(today)) - dt.date.fromisoformat(sheet.verified)
    return SheetState.VERIFIED if age.days <= FRESH_DAYS else SheetState.STALE


def parse_register(raw: bytes) -> SheetRegister:
    try:
        found = decode_json(raw, SheetRegister)
        for one in found.sheets:
            for date in (one.date, one.verified, one.revoked):
                _date(date) if date else None
    except (msgspec.DecodeError, UnicodeError, RecursionError, BadInput):
        raise BadInput("the register of sheets is malformed") from None
    if found.format != 1:
        raise BadInput(f"the register of sheets has format {found.format}; this Holdfast reads only format 1")
    return found


def _date(text: str) -> str:
    try:
        return dt.date.fromisoformat(text).isoformat()
    except ValueError:
        raise BadInput(f"{text!r} is not a date", hint="write it as 2026-11-15") from None
