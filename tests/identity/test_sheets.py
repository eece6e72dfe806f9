"""The register of sheets: numbered once, verified, stale, revoked."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import BadInput
from holdfast.identity.paper.sheets import SHEETS_MAX, PrintedSheet, SheetRegister, SheetState, parse_register, state_of


def test_sheets_are_numbered_verified_and_revoked() -> None:
    register = SheetRegister().printed(
        PrintedSheet(number=1, date="2026-11-15", generation=1),
        *(PrintedSheet(number=n, date="2026-11-15", generation=1, document="22bf", needed=2) for n in (2, 3, 4)),
    )
    assert register.next_number == 5
    assert not register.is_fresh("2026-11-15")
    one = register.verified(1, date="2026-11-15")
    assert one.is_fresh("2027-02-13")
    assert not one.is_fresh("2027-02-14")
    share = register.verified(2, date="2026-11-15")
    assert not share.is_fresh("2026-11-16")
    assert share.verified(3, date="2026-11-15").is_fresh("2026-11-16")
    gone = share.verified(3, date="2026-11-15").revoked(3, date="2026-11-16")
    assert [bool(sheet.revoked) for sheet in gone.sheets] == [False, True, True, True]
    assert not gone.is_fresh("2026-11-16")
    with pytest.raises(BadInput, match="was revoked"):
        gone.verified(2, date="2026-11-17")
    with pytest.raises(BadInput, match="sheet number 4 is already used"):
        register.printed(PrintedSheet(number=4, date="2026-11-15", generation=1))
    assert parse_register(msgspec.json.encode(gone)) == gone
    for wrong in (b"{", b"[]", b'{"format":9}', b'{"sheets":[{"number":1,"date":"x","generation":1}]}'):
        with pytest.raises(BadInput):
            parse_register(wrong)


def sheet(number: int, **more: object) -> PrintedSheet:
    return msgspec.convert({"number": number, "date": "2026-01-01", "generation": 1, **more}, PrintedSheet)


def test_a_sheet_is_stale_after_ninety_days() -> None:
    one = sheet(1, verified="2026-01-01")
    assert state_of(one, "2026-04-01") is SheetState.VERIFIED
    assert state_of(one, "2026-04-02") is SheetState.STALE
    assert state_of(sheet(1), "2026-01-01") is SheetState.UNVERIFIED
    assert state_of(sheet(1, verified="2026-01-01", revoked="2026-01-02"), "2026-01-02") is (SheetState.REVOKED)


def test_shares_are_found_by_document_and_number() -> None:
    register = SheetRegister().printed(
        sheet(1), sheet(2, document="aa"), sheet(3, document="bb"), sheet(4, document="aa")
    )
    found = register.find_share("aa", 2)
    assert found is not None
    assert found.number == 4
    assert register.find_share("aa", 3) is None
    assert register.find_share("aa", 0) is None
    assert register.find_share("", 1) is None
    gone = register.revoked(1, date="2026-01-02")
    assert [one.number for one in gone.current()] == [2, 3, 4]
    assert [bool(one.revoked) for one in gone.sheets] == [True, False, False, False]


def test_a_second_revocation_keeps_the_first_date() -> None:
    once = SheetRegister().printed(sheet(1)).revoked(1, date="2026-01-02")
    assert once.revoked(1, date="2026-01-03") == once


def test_the_register_has_a_limit_and_says_what_is_not_there() -> None:
    assert SheetRegister().next_number == 1
    full = SheetRegister(sheets=tuple(sheet(n) for n in range(1, SHEETS_MAX)))
    full = full.printed(sheet(SHEETS_MAX))
    with pytest.raises(BadInput, match="has 1,000 sheets; Holdfast accepts at most 1,000"):
        full.printed(sheet(SHEETS_MAX + 1))
    with pytest.raises(BadInput, match="the register has no sheet 7"):
        SheetRegister().get(7)
    with pytest.raises(BadInput, match="is not a date"):
        SheetRegister().printed(sheet(1)).verified(1, date="yesterday")
    with pytest.raises(BadInput, match="has format 2; this Holdfast reads only format 1"):
        parse_register(b'{"format":2}')
    with pytest.raises(BadInput, match="malformed"):
        parse_register(b'{"sheets":[{"number":1,"date":"2026-01-01","generation":1,"verified":"soon"}]}')


def test_single_sheets_are_revoked_one_by_one() -> None:
    register = SheetRegister().printed(sheet(1), sheet(2))
    assert [one.number for one in register.revoked(1, date="2026-01-02").current()] == [2]
    first = SheetRegister().printed(sheet(1, document="aa")).find_share("aa", 1)
    assert first is not None
    assert (first.number, first.needed) == (1, 1)
    assert register.is_fresh("2026-01-02") is False
    assert SHEETS_MAX == 1_000
