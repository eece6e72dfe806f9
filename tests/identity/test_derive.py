"""Keys from the phrase, by SLIP-0010 and by the published vectors of our own."""

from __future__ import annotations

import json
import re

import pytest
from nacl.signing import VerifyKey

from holdfast.errors import BadInput
from holdfast.identity.paper.derive import CURVE25519, ED25519, HARDENED, PaperKeys, derive
from holdfast.identity.paper.phrase import Phrase
from holdfast_proofs.support.vectors import CHECKOUT, vectors

SLIP10: list[dict[str, str]] = json.loads((vectors("slip10") / "vectors.json").read_text())
CURVES = {"ed25519": ED25519, "curve25519": CURVE25519}


@pytest.mark.parametrize("row", SLIP10, ids=lambda row: f"{row['curve']} {row['path']}")
def test_slip10_vectors(row: dict[str, str]) -> None:
    path = [int(step.rstrip("'hH")) for step in row["path"].split("/")[1:]]
    key, chain = derive(CURVES[row["curve"]], bytes.fromhex(row["seed"]), path)
    assert (key.hex(), chain.hex()) == (row["private"], row["chain_code"])


def test_powers_and_generations_have_keys_of_their_own(phrase: Phrase) -> None:
    keys = PaperKeys(phrase)
    publics = {key.public_bytes for g in (1, 2, 3) for key in (keys.recovery(g), keys.next(g))}
    assert len(publics) == 6
    assert keys.recovery(2).public_bytes == PaperKeys(phrase).recovery(2).public_bytes
    assert keys.recovery(1).public_bytes != PaperKeys(phrase, "another").recovery(1).public_bytes


def test_a_passphrase_is_the_same_however_its_letters_are_composed(phrase: Phrase) -> None:
    composed, apart = PaperKeys(phrase, "caf\u00e9"), PaperKeys(phrase, "cafe\u0301")
    assert composed.escrow().recipient == apart.escrow().recipient


def test_a_derived_key_signs(phrase: Phrase) -> None:
    with PaperKeys(phrase).recovery(1) as key:
        VerifyKey(key.public_bytes).verify(b"message", key.sign(b"message"))
        assert key.seed().hex() not in repr(key)


@pytest.mark.parametrize("generation", [0, -1, HARDENED])
def test_generations_out_of_range_are_refused(phrase: Phrase, generation: int) -> None:
    with pytest.raises(BadInput):
        PaperKeys(phrase).recovery(generation)


def test_the_published_phrase_gives_the_published_keys() -> None:
    page = (CHECKOUT / "docs" / "formats" / "recovery-phrase.md").read_text()
    published = json.loads(re.findall(r"^```json\n(.*?)^```$", page, re.M | re.S)[-1])
    phrase = Phrase(bytes.fromhex(published["secret"]))
    assert list(phrase.words) == published["words"].split()
    for row in published["keys"]:
        keys = PaperKeys(phrase, row["passphrase"])
        assert phrase.seed(row["passphrase"]).reveal().hex() == row["seed"]
        for g in (1, 2):
            assert keys.recovery(g).public_bytes.hex() == row["recovery"][g - 1]
            assert keys.next(g).public_bytes.hex() == row["next"][g - 1]
        assert (keys.escrow().reveal(), keys.escrow().recipient) == (row["escrow"], row["recipient"])
