"""The recovery document: printed, scanned badly, and read back to the same secret."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadPhrase, BadShare, BadSheet
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.pages import card_pdf, card_text, sheet_pdf, sheet_text
from holdfast.identity.paper.paper import Card, Sheet, check_line, phrase_sheet, read_card, read_secret, share_sheets
from holdfast.identity.paper.phrase import (
    Phrase,
    english,
    new_phrase,
    places_to_ask,
    read_phrase,
    repair,
    retyped_wrong,
    wrong_places,
)
from holdfast.identity.paper.shares import combine, split
from holdfast.identity.records.encodings import agent_id
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.support.scanner import dark_box, printed, rendered, scanned, worn
from holdfast_proofs.support.vectors import CHECKOUT

AGENT = agent_id(b"the first record")
SHOWN: dict[str, Any] = {"name": "ada", "agent_id": AGENT, "date": "2026-11-15", "generation": 1}


def record(seed: int) -> bytes:
    """As large and as random as a signed inception with three witnesses."""
    entropy = SeededEntropy(seed)
    keys = ["z6Mk" + base64.b32encode(entropy.bytes(28)).decode()[:44] for _ in range(5)]
    digests = [base64.b32encode(entropy.bytes(32)).decode().rstrip("=").lower() for _ in range(2)]
    signature = base64.urlsafe_b64encode(entropy.bytes(64)).decode().rstrip("=")
    body = {
        "nonce": entropy.bytes(8).hex(),
        "nxt": {"n": digests[:1], "nt": 1},
        "op": {"k": keys[:1], "kt": 1},
        "rec": {"n": digests[1:], "nt": 1},
        "t": "icp",
        "v": 1,
        "wit": {"k": keys[1:4], "m": 2},
    }
    return json.dumps({"b": body, "sig": [[keys[0], signature]]}, separators=(",", ":")).encode()


@pytest.fixture
def sheet(phrase: Phrase) -> Sheet:
    return phrase_sheet(phrase, number=3, **SHOWN)


@pytest.fixture
def card() -> Card:
    return Card(
        name="ada",
        agent_id=AGENT,
        date="2026-11-15",
        generation=1,
        records=(record(1), record(2)),
        handles=("ada@relay.example.org",),
        relays=("https://relay.example.org", "https://second.example.net"),
        backups=("usb disk in the safe", "backup.example.org:ada"),
        contact="keeper@example.org",
    )


BLOTS = {100: ((0.35, 0.35), (0.5, 0.5)), 200: ((0.55, 0.2),)}


@pytest.mark.parametrize("dpi", [100, 200])
def test_a_worn_sheet_is_scanned_to_the_recovery_key(sheet: Sheet, phrase: Phrase, dpi: int) -> None:
    pdf, box = printed(lambda: sheet_pdf(sheet))
    page = rendered(pdf, dpi=dpi)
    assert scanned(page) == sheet.code
    for place in BLOTS[dpi]:
        read = read_secret(scanned(worn(page, box, dpi=dpi, place=place)))
        assert read.phrase is not None
        assert read.id_start == AGENT[:8]
        found = PaperKeys(read.phrase).recovery(1).public_bytes
        assert found == PaperKeys(phrase).recovery(1).public_bytes


@pytest.mark.parametrize("dpi", [100, 200])
def test_a_worn_card_is_scanned_to_the_records(card: Card, dpi: int) -> None:
    pdf, box = printed(lambda: card_pdf(card))
    image = worn(rendered(pdf, dpi=dpi), box, dpi=dpi, place=BLOTS[dpi][0])
    assert read_card(scanned(image)) == card.records


def test_worn_shares_are_scanned_and_joined(phrase: Phrase) -> None:
    sheets = share_sheets(split(phrase, needed=2, total=3), number=4, **SHOWN)
    words: list[str] = []
    for one in sheets[1:]:
        pdf, box = printed(lambda one=one: sheet_pdf(one))
        read = read_secret(scanned(worn(rendered(pdf, dpi=100), box, dpi=100, place=(0.35, 0.35))))
        assert read.share is not None
        words.append(" ".join(read.share.words))
    assert combine(words) == phrase
    assert {one.part for one in sheets} == {f"share {n} of 3, any 2 needed" for n in (1, 2, 3)}


def test_pages_are_black_and_white_whole_and_hold_everything(sheet: Sheet, card: Card) -> None:
    long: dict[str, Any] = {**SHOWN, "name": "a name as long as names can well be, and longer"}
    shares = share_sheets(
        split(new_phrase(SeededEntropy(24)), needed=3, total=5),
        number=4,
        holders=["Grace, whose name and titles are as long as a holder can have"],
        has_passphrase=True,
        **long,
    )
    for pdf, texts in (
        (sheet_pdf(sheet), [*sheet.words, sheet.check[:4], "holdfast recover", "1 of 1"]),
        (sheet_pdf(shares[0]), [*shares[0].words, "any 3 needed", "Grace", "kept at", "longer"]),
        (card_pdf(card), [AGENT[-5:-1], *card.relays, *card.backups, "m/7233'/2'/0'", "age -d"]),
    ):
        said = subprocess.run(
            ["pdftotext", "-layout", "-", "-"], input=pdf, capture_output=True, check=True
        ).stdout.decode()
        assert said.count("\f") == 1
        for text in texts:
            assert text in said
        page = rendered(pdf, dpi=50)
        greys = page.convert("RGB").getcolors(1 << 20)
        assert greys is not None
        assert all(len(set(colour)) == 1 for _, colour in greys if isinstance(colour, tuple))
        dark = dark_box(page)
        margin = 9 / 25.4 * 50
        assert dark[0] >= margin
        assert dark[1] >= margin
        assert page.width - dark[2] >= margin
        assert page.height - dark[3] >= margin / 2


def test_the_same_arguments_give_the_same_bytes_on_another_day(sheet: Sheet, card: Card) -> None:
    program = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nimport test_paper as t\n"
        "from holdfast.identity.paper.phrase import new_phrase\n"
        "s = t.phrase_sheet(new_phrase(t.SeededEntropy(24)), number=3, **t.SHOWN)\n"
        "sys.stdout.buffer.write(t.sheet_pdf(s) + t.sheet_text(s).encode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        env=os.environ | {"TZ": "Pacific/Auckland"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == sheet_pdf(sheet) + sheet_text(sheet).encode()
    assert card_pdf(card) == card_pdf(card)


def test_the_text_forms_are_read_back(sheet: Sheet, card: Card, phrase: Phrase) -> None:
    assert read_secret(sheet_text(sheet)).phrase == phrase
    assert all(len(line) <= 80 for line in sheet_text(sheet).splitlines() if line != sheet.code)
    assert "for recovery 1" in sheet_text(sheet)
    assert read_secret(sheet.code).phrase == phrase
    assert read_card(card_text(card)) == card.records
    table = sheet_text(sheet).split("\n\n")[2].replace(".", " ").split()
    words = dict(zip(map(int, table[::2]), table[1::2], strict=True))
    assert read_phrase(" ".join(words[number] for number in range(1, 25))) == phrase


def test_the_check_line_confirms_a_repair_without_the_log(sheet: Sheet, phrase: Phrase) -> None:
    words = [*phrase.words[:6], "zoo", *phrase.words[7:]]
    found = repair(" ".join(words), lambda one: check_line(one.words) == sheet.check)
    assert (found.phrase, found.change) == (phrase, "word 7 was wrong")
    assert len(sheet.check) == 8


@pytest.mark.parametrize("text", ["", "HF1R:", "HF1R:HF1QABCD:WORD", "HF2R:HF1QABCD:" + "ZOO " * 23 + "ZOO", "hf1r:x"])
def test_what_is_no_code_is_refused(text: str) -> None:
    with pytest.raises(BadSheet):
        read_secret(text)
    with pytest.raises(BadSheet):
        read_card(text)


def test_damaged_codes_are_refused(sheet: Sheet, card: Card, phrase: Phrase) -> None:
    other = "ZOO" if not sheet.code.endswith("ZOO") else "ZONE"
    with pytest.raises(BadPhrase):
        read_secret(f"{sheet.code.rsplit(' ', 1)[0]} {other}")
    with pytest.raises(BadSheet, match="2 different QR codes"):
        read_secret(f"{sheet.code}\n{sheet.code.replace('HF1R', 'HF1S')}")
    with pytest.raises(BadShare):
        read_secret(sheet.code.replace("HF1R", "HF1S"))
    (code,) = card.codes
    for wrong in (code[:-9], code[:20] + "A" + code[21:], "HF1C:A"):
        with pytest.raises(BadSheet):
            read_card(wrong)
    bomb = base64.b32encode(zlib.compress(bytes(10_000_000), 9)).decode().rstrip("=")
    with pytest.raises(BadSheet):
        read_card(f"HF1C:{bomb[:16_000]}")


@given(st.text(max_size=200))
def test_any_text_is_refused_or_read(text: str) -> None:
    for read in (read_secret, read_card):
        with pytest.raises(BadSheet):
            read(text)


def test_more_than_a_code_or_a_page_holds_is_refused(card: Card) -> None:
    with pytest.raises(BadSheet, match="too long for a QR code"):  # one line that no code holds
        card_pdf(replace(card, records=(b"".join(record(n) for n in range(9)),)))
    relays = tuple(f"https://relay-{n}.example.org/path" for n in range(90))
    with pytest.raises(BadSheet, match="too long for one page"):
        card_pdf(replace(card, relays=relays))


def test_a_copy_by_hand_is_asked_back(phrase: Phrase) -> None:
    places = places_to_ask(24, SeededEntropy(1))
    assert len(set(places)) == 4
    assert all(1 <= place <= 24 for place in places)
    answers = {place: phrase.words[place - 1][:4].upper() for place in places}
    assert wrong_places(phrase.words, answers, english()) == []
    assert wrong_places(phrase.words, {**answers, places[1]: "zoo"}, english()) == [places[1]]
    text = " ".join(phrase.words)
    assert retyped_wrong(phrase.words, text.upper(), english()) == []
    assert retyped_wrong(phrase.words, text.replace(phrase.words[4], "zoo"), english()) == [5]
    assert retyped_wrong(phrase.words, text + " zoo", english()) == [0]


def test_a_sheet_shows_no_word_in_its_repr(sheet: Sheet, phrase: Phrase, measured: Callable[[str], None]) -> None:
    assert not any(word in repr(sheet) for word in phrase.words)
    shares = split(phrase, needed=2, total=3)
    shown = repr(share_sheets(shares, number=1, **SHOWN))
    assert "words" not in shown
    assert "Share(1, 2 needed, document" in shown
    measured(f"paper: a sheet is {len(sheet_pdf(sheet)):,} bytes of PDF")


def test_the_published_sheet_has_the_published_code() -> None:
    page = (CHECKOUT / "docs" / "formats" / "recovery-document.md").read_text()
    published = json.loads(re.findall(r"^```json\n(.*?)^```$", page, re.M | re.S)[-1])
    shown: dict[str, Any] = {**SHOWN, "agent_id": published["agent_id"]}
    sheet = phrase_sheet(Phrase(bytes(range(32))), number=1, **shown)
    assert (sheet.check, sheet.code) == (published["check"], published["code"])
