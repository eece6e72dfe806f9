"""age files: the public suite, and what is refused before the library is asked."""

from __future__ import annotations

import base64
import hashlib
import zlib
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput, VaultDamaged, VaultLocked
from holdfast.identity.vault import age
from holdfast.identity.vault.age import ARMOUR_BEGIN, ARMOUR_END, AgeIdentity, open_sealed, parse, seal
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.support.vectors import vectors

SUITE = sorted(vectors("age").iterdir())


def read(path: Path) -> tuple[dict[str, list[str]], bytes]:
    head, body = path.read_bytes().split(b"\n\n", 1)
    fields: dict[str, list[str]] = {}
    for line in head.decode().split("\n"):
        name, value = line.split(": ", 1)
        fields.setdefault(name, []).append(value)
    return fields, zlib.decompress(body) if "compressed" in fields else body


@pytest.mark.parametrize("path", SUITE, ids=lambda path: path.name)
def test_the_public_suite(path: Path) -> None:
    fields, body = read(path)
    wanted = fields["expect"][0]
    identities = [AgeIdentity.from_text(one) for one in fields.get("identity", [])]
    results: list[str] = []
    for identity in identities or [AgeIdentity.new(SeededEntropy(1))]:
        try:
            results.append(hashlib.sha256(open_sealed(body, identity)).hexdigest())
        except VaultLocked:
            results.append("no match")
        except VaultDamaged:
            results.append("refused")
    if "passphrase" in fields:
        # Here the suite lets some be opened: we refuse the kind as a whole, before any work is
        # done for it. Everything else is as the suite has it.
        assert set(results) <= {"refused", "no match"}
    elif wanted == "success":
        assert fields["payload"][0] in results
    else:
        assert set(results) == {"no match" if wanted == "no match" else "refused"}


def test_a_passphrase_file_is_refused_before_the_library_is_called() -> None:
    """pyrage would follow a work factor of 23 into 8 GiB of memory."""
    body = read(next(path for path in SUITE if path.name == "scrypt"))[1]
    hostile = body.replace(b" 10\n", b" 23\n", 1)
    assert hostile != body
    identity = AgeIdentity.new(SeededEntropy(1))
    with (
        patch.object(age, "_pyrage", side_effect=AssertionError("the library was called")),
        pytest.raises(VaultDamaged, match="kind scrypt"),
    ):
        open_sealed(hostile, identity)


GOOD = (
    b"age-encryption.org/v1\n-> X25519 TEiF0ypqr+bpvcqXNyCVJpL7OuwPdVwPL7KQEbFDOCc\n"
    b"hjabGXwSLQ9c3S6Lw2i+S2Tu2fiwQHHslbBN6B41FLE\n"
    b"--- ORM4jo0+tfqd57vT3+pUVZg/sHurDuHFHhXkG7S+RE4\n" + bytes(40)
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\n--- ", b"\n-> stanza\n--- "),  # a recipient without a body
        (b"\n--- ", b"\n-> stanza\n" + b"A" * 64 + b"\n--- "),  # without its short last line
        (b"v1\n", b"v1\r\n"),
        (b"-> X25519 ", b"-> X25519  "),
        (b"-> X25519 ", b"->X25519 "),
        (b"OCc\n", b"OCd\n"),  # bits behind the end
        (b"FLE\n", b"FLE=\n"),
        (b"FLE\n", b"FLE \n"),
        (b"-> X25519 ", b"-> X25519 x "),
        (b"RE4\n", b"RE4\n\n" * 0 + b"RE4 \n"),
        (b"--- ", b"---"),
        (b"-> X25519", b"-> X2551\xc3\xa9"),
        (bytes(40), bytes(31)),
    ],
)
def test_malformed_headers_are_refused(old: bytes, new: bytes) -> None:
    assert parse(GOOD).stanzas[0].kind == "X25519"
    with pytest.raises(VaultDamaged):
        parse(GOOD.replace(old, new, 1))


def test_endless_headers_are_refused() -> None:
    many = GOOD.replace(b"\n--- ", b"\n-> a\n" * 1 + b"\n" + b"-> a\n\n" * 100 + b"--- ", 1)
    with pytest.raises(VaultDamaged, match="more than 64"):
        parse(many)
    with pytest.raises(VaultDamaged, match="has no end"):
        parse(b"age-encryption.org/v1\n-> a\n" + b"A" * 100_000)


def test_sealed_for_two_either_opens_and_a_third_does_not() -> None:
    one, two, three = (AgeIdentity.new(SeededEntropy(seed)) for seed in (1, 2, 3))
    sealed = seal(b"payload", [one.recipient, two.recipient])
    assert open_sealed(sealed, one) == open_sealed(sealed, two) == b"payload"
    with pytest.raises(VaultLocked):
        open_sealed(sealed, three)
    with pytest.raises(VaultDamaged):
        open_sealed(sealed[:-1], one)


def test_recipients_are_checked() -> None:
    one = AgeIdentity.new(SeededEntropy(1)).recipient
    for recipients in ([], [one, one], ["ssh-ed25519 AAAA"], [one[:-1] + "q"]):
        with pytest.raises(BadInput):
            seal(b"payload", recipients)


def test_an_identity_shows_only_its_recipient() -> None:
    identity = AgeIdentity.new(SeededEntropy(1))
    assert identity.reveal() not in repr(identity)
    with pytest.raises(BadInput) as caught:
        AgeIdentity.from_text(identity.reveal()[:-1])
    assert "SECRET" not in str(caught.value)


@given(at=st.integers(0, 700), new=st.binary(max_size=6), cut=st.integers(0, 3), armour=st.booleans())
def test_changed_files_are_refused_never_misread(at: int, new: bytes, cut: int, armour: bool) -> None:
    one = AgeIdentity.new(SeededEntropy(1))
    sealed = seal(b"payload" * 30, [one.recipient])
    if armour:
        lines = base64.encodebytes(sealed).replace(b"\n", b"")
        rows = b"\n".join(lines[at : at + 64] for at in range(0, len(lines), 64))
        sealed = ARMOUR_BEGIN + b"\n" + rows + b"\n" + ARMOUR_END + b"\n"
        assert open_sealed(sealed, one) == b"payload" * 30
    changed = sealed[:at] + new + sealed[at + cut :]
    try:
        assert open_sealed(changed, one) == b"payload" * 30
    except (VaultDamaged, VaultLocked):
        assert changed != sealed
