"""One verifier: the reference set, Wycheproof and the edge points, and keys that may not enter."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nacl.bindings
import pytest
from nacl.signing import SigningKey

sys.path.insert(0, str(Path(__file__).parent))

import suites

from holdfast.errors import BadInput
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import key_bytes
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes

SODIUM = Sodium()
FIELD = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493

# The points of small order, each with all its spellings.
LOW_ORDER = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
)

REFUSED = {"low_order_A", "low_order_R", "non_canonical_A", "non_canonical_R", "low_order_residue"}


def raw(row: dict[str, Any]) -> tuple[bytes, bytes, bytes]:
    return bytes.fromhex(row["key"]), bytes.fromhex(row["msg"]), bytes.fromhex(row["sig"])


def test_the_reference_set_signs_and_verifies(measured: Callable[[str], None]) -> None:
    rows = suites.reference()
    for row in rows:
        key, message, signature = raw(row)
        signer = KeyPair(SecretBytes(bytes.fromhex(row["seed"])))
        assert key_bytes(signer.public) == key
        assert signer.sign(message) == signature
        assert SODIUM.verifies(key, message, signature)
        assert not SODIUM.verifies(key, message + b"\0", signature)
        assert SODIUM.is_good_key(key)
    measured(f"Ed25519 reference set: {len(rows)} rows")


def test_wycheproof_verdicts_are_the_published_ones(measured: Callable[[str], None]) -> None:
    rows = suites.wycheproof()
    for row in rows:
        assert SODIUM.verifies(*raw(row)) is (row["result"] == "valid"), row["id"]
    measured(f"Wycheproof Ed25519: {len(rows)} rows, no deviation")


def test_edge_points_are_judged_as_libsodium_judges_them(measured: Callable[[str], None]) -> None:
    """Small order, second spellings and residues are refused.

    What remains are keys with a torsion part that happens to cancel: libsodium lets such a
    signature pass, so the port does too; but no such key can be registered in a log.
    """
    rows = suites.cctv()
    passed = 0
    for row in rows:
        key, message = bytes.fromhex(row["key"]), row["msg"].encode()
        flags = set(row["flags"] or ())
        verdict = SODIUM.verifies(key, message, bytes.fromhex(row["sig"]))
        assert verdict is not bool(flags & REFUSED), row["number"]
        assert not (verdict and SODIUM.is_good_key(key)), row["number"]
        if flags & {"low_order_A", "low_order_component_A", "non_canonical_A"}:
            assert not SODIUM.is_good_key(key), row["number"]
        passed += verdict
    measured(f"CCTV edge points: {len(rows)} rows, {passed} verified, none with a registrable key")


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_low_order_key_is_no_key(point: str) -> None:
    key = bytes.fromhex(point)
    assert not SODIUM.is_good_key(key)
    zero = bytes(32)
    for r in (key, bytes([1]) + bytes(31)):
        assert not SODIUM.verifies(key, b"anything", r + zero)


def test_a_key_with_a_torsion_part_is_not_registered() -> None:
    """libsodium's verifier cannot list such keys; the screening of registered keys finds them."""
    good = key_bytes(KeyPair(SecretBytes(bytes(range(32)))).public)
    for point in LOW_ORDER[8:12]:
        mixed = nacl.bindings.crypto_core_ed25519_add(good, bytes.fromhex(point))
        assert not SODIUM.is_good_key(mixed)


def test_an_s_beyond_the_order_is_refused() -> None:
    signer = KeyPair(SecretBytes(hashlib.sha256(b"malleable").digest()))
    signature = signer.sign(b"pay")
    s = int.from_bytes(signature[32:], "little")
    key = key_bytes(signer.public)
    assert SODIUM.verifies(key, b"pay", signature)
    for times in (1, 2, 7):
        other = (s + times * ORDER).to_bytes(32, "little")
        assert not SODIUM.verifies(key, b"pay", signature[:32] + other)


def test_keys_that_are_not_a_point_or_not_canonical_are_refused() -> None:
    for y in (2, FIELD, FIELD + 1, FIELD + 3, FIELD + 18, 2**255 - 1):
        key = y.to_bytes(32, "little")
        assert not SODIUM.is_good_key(key)


@pytest.mark.parametrize("size", [0, 1, 31, 33, 63, 65, 128])
def test_other_lengths_are_refused_without_an_error(size: int) -> None:
    signer = KeyPair(SecretBytes(bytes(32)))
    key, signature = key_bytes(signer.public), signer.sign(b"m")
    assert not SODIUM.verifies(key, b"m", bytes(size))
    assert not SODIUM.verifies(bytes(size), b"m", signature)
    assert not SODIUM.is_good_key(bytes(size))
    with pytest.raises(BadInput if size else ValueError):
        KeyPair(SecretBytes(bytes(size)))


def test_a_signer_does_not_show_its_secret() -> None:
    seed = hashlib.sha256(b"secret").digest()
    shown = repr(KeyPair(SecretBytes(seed)))
    assert seed.hex() not in shown
    assert str(seed) not in shown


def test_a_key_pair_signs_as_its_seed_does() -> None:
    key = KeyPair(SecretBytes(bytes(range(32))))
    assert key.sign(b"record") == bytes(SigningKey(bytes(range(32))).sign(b"record").signature)
    assert Sodium().verifies(key.public_bytes, b"record", key.sign(b"record"))
