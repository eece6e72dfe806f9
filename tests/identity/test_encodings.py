"""Bech32, digests, multikeys, signatures: one spelling each, every other one refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import suites

from holdfast.errors import BadRecord
from holdfast.identity.records import bech32
from holdfast.identity.records.bech32 import Form
from holdfast.identity.records.encodings import (
    agent_id,
    digest_of,
    digest_text,
    key_bytes,
    key_text,
    parse_agent_id,
    parse_digest,
    signature_bytes,
    signature_text,
)

FORMS = {"bech32": Form.BECH32, "bech32m": Form.BECH32M}


@pytest.mark.parametrize("form", FORMS)
def test_the_published_texts(form: str, measured: Callable[[str], None]) -> None:
    """Valid ones are read in their own form and written back; invalid ones are refused in it."""
    valid, invalid = suites.bech32(form, "valid"), suites.bech32(form, "invalid")
    for row in valid:
        text = row.decode("ascii")
        prefix, values, found = bech32.split(text)
        assert found is FORMS[form]
        assert bech32.join(prefix, values, form=found) == text.lower()
    for row in invalid:
        with pytest.raises(BadRecord):
            _read(row.decode("latin-1"), FORMS[form])
    measured(f"{form}: {len(valid)} valid and {len(invalid)} invalid texts")


def _read(text: str, form: Form) -> None:
    _, _, found = bech32.split(text)
    if found is not form:
        raise BadRecord("the other form")


# Published in BIP-173 and BIP-350 beside their lists: data of other lengths and prefixes.
@pytest.mark.parametrize("text", ["A12UEL5L", "a12uel5l", "A1LQFN3A", "a1lqfn3a", "?1ezyfcl", "?1v759aa"])
def test_one_case_or_the_other(text: str) -> None:
    assert bech32.split(text)[1] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "11",
        "a1",
        "a12uel5L",
        "A12UeL5L",
        "pzry9x0s0muk",
        "1pzry9x0s0muk",
        "\x7f1axkwrx",
        "li1dgmt3",
        "A1G7SGD8",
        "an84characterslonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio1569pvx",
    ],
)
def test_what_is_no_bech32(text: str) -> None:
    with pytest.raises(BadRecord):
        bech32.split(text)


@given(st.binary(max_size=48), st.sampled_from(list(Form)))
def test_bytes_come_back(data: bytes, form: Form) -> None:
    text = bech32.encode("hf", data, form=form)
    assert bech32.decode(text, prefix="hf", form=form) == data
    assert bech32.decode(text.upper(), prefix="hf", form=form) == data
    other = Form.BECH32 if form is Form.BECH32M else Form.BECH32M
    with pytest.raises(BadRecord):
        bech32.decode(text, prefix="hf", form=other)
    with pytest.raises(BadRecord):
        bech32.decode(text, prefix="hg", form=form)


@given(st.binary(min_size=32, max_size=32), st.integers(3, 60), st.integers(1, 31))
def test_one_wrong_character_of_an_id_is_noticed(raw: bytes, place: int, step: int) -> None:
    charset = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
    text = bech32.encode("hf", raw)
    wrong = charset[(charset.index(text[place]) + step) % 32]
    with pytest.raises(BadRecord):
        parse_agent_id(text[:place] + wrong + text[place + 1 :])


def test_padding_that_is_long_or_not_zero_is_refused() -> None:
    with pytest.raises(BadRecord):
        bech32.decode(bech32.join("hf", [0], form=Form.BECH32M), prefix="hf")
    with pytest.raises(BadRecord):
        bech32.decode(bech32.join("hf", [0, 1], form=Form.BECH32M), prefix="hf")
    with pytest.raises(BadRecord):
        bech32.encode("hf", bytes(60))
    with pytest.raises(BadRecord):
        bech32.encode("HF", bytes(4))
    with pytest.raises(BadRecord):
        bech32.encode("", bytes(4))


def test_an_id_has_61_characters_and_is_read_in_capitals() -> None:
    found = agent_id(b"{}")
    assert len(found) == 61
    assert parse_agent_id(found.upper()) == found
    for bad in (bech32.encode("hf", bytes(31)), bech32.encode("ag", bytes(32)), found[:-1]):
        with pytest.raises(BadRecord):
            parse_agent_id(bad)


@given(st.binary(min_size=32, max_size=32))
def test_digests_and_keys_come_back(raw: bytes) -> None:
    assert len(digest_text(raw)) == 52
    assert parse_digest(digest_text(raw)) == digest_text(raw)
    key = key_text(raw)
    assert key.startswith("z6Mk")
    assert len(key) == 48
    assert key_bytes(key) == raw


@given(st.binary(min_size=64, max_size=64))
def test_signatures_come_back(raw: bytes) -> None:
    text = signature_text(raw)
    assert len(text) == 86
    assert signature_bytes(text) == raw


def test_a_published_did_key() -> None:
    """did:key of the specification, as a multikey."""
    text = "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    assert key_text(key_bytes(text)) == text


@pytest.mark.parametrize(
    "bad", ["", "a" * 51, "a" * 53, "A" * 52, "1" * 52, "a" * 51 + "b", "\u017f" * 52, "a" * 51 + "=", "ä" * 52]
)
def test_other_spellings_of_a_digest(bad: str) -> None:
    assert parse_digest(digest_of(b""))
    with pytest.raises(BadRecord):
        parse_digest(bad)


def test_other_spellings_of_a_key() -> None:
    good = key_text(bytes(range(32)))
    bad = [
        good[1:],
        f"z1{good[2:]}",
        good[:-1],
        f"{good}1",
        good.replace("k", "0"),
        good[:-1] + "ä",
        "z" * 48,
        "z" + "1" * 47,
        f"m{good[1:]}",
    ]
    for text in bad:
        with pytest.raises(BadRecord):
            key_bytes(text)
    with pytest.raises(BadRecord):
        key_text(bytes(31))


def test_other_spellings_of_a_signature() -> None:
    good = signature_text(bytes(64))
    for text in (
        good + "=",
        good + "==",
        good[:-1],
        good[:-1] + "B",
        "+" + good[1:],
        "ä" + good[1:],
        " " + good[1:],
        "\n" + good[1:],
    ):
        with pytest.raises(BadRecord):
            signature_bytes(text)
