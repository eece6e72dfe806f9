"""Verifiers of two other kinds of key logs, made of our own parts: for suites that others wrote.

did:webvh logs are read with the house's canonical JSON, its multikeys and its one verifier of
Ed25519; did:plc logs with its strict base64url and base32. Rules that Holdfast does not have (a
place on the web, times that rise, a window of 72 hours) are here, so that every verdict of the
suites can be compared.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import Any, cast

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256

from holdfast.core.values import canonical
from holdfast.errors import BadRecord
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import digest_text, key_bytes, signature_bytes

# Any: JSON of other people's logs.
Entry = dict[str, Any]
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_SODIUM = Sodium()
WINDOW_S = 72 * 3600


class Refused(Exception):
    """The log is not valid."""


def need(holds: object, why: str) -> None:
    if not holds:
        raise Refused(why)


# did:webvh


def check_webvh(lines: list[str], witnessed: list[Entry]) -> Entry:
    """The last document of a valid log."""
    before: Entry = {}
    state: Entry = {"updateKeys": [], "nextKeyHashes": [], "witness": {}}
    needs: list[tuple[int, Entry]] = []
    entries = [cast("Entry", json.loads(line)) for line in lines]
    for number, entry in enumerate(entries, 1):
        given = cast("Entry", entry["parameters"])
        _check_entry(entry, before, number)
        committed = state["nextKeyHashes"]
        keys = given.get("updateKeys") if committed else state["updateKeys"]
        if number == 1:
            need(given["method"] == "did:webvh:1.0", "an unknown version of the method")
            _check_scid(entry)
            keys = given["updateKeys"]
        elif committed:
            need(keys, "keys were committed to, and none is shown")
            hashed = {_multihash(key.encode()) for key in cast("list[str]", keys)}
            need(hashed <= set(committed), "a key that nothing committed to")
        need(given.get("method", "did:webvh:1.0") == "did:webvh:1.0", "an unknown version")
        _check_proof(entry, cast("list[str]", keys))
        current = cast("Entry", state["witness"])
        state = {name: given.get(name, old) for name, old in state.items()}
        _check_witness_set(state["witness"])
        needs.append((number, current or state["witness"]))
        before = entry
    _check_witnessed(entries, needs, witnessed)
    return entries[-1]["state"]


def _check_entry(entry: Entry, before: Entry, number: int) -> None:
    counted, _, hashed = str(entry["versionId"]).partition("-")
    need(counted == str(number), "a number that does not follow")
    previous = before.get("versionId") or entry["parameters"]["scid"]
    body = {**entry, "versionId": previous}
    del body["proof"]
    need(_multihash(canonical(body)) == hashed, "the chain of hashes is broken")
    if before:
        need(entry["versionTime"] > before["versionTime"], "a time that does not rise")


def _check_scid(entry: Entry) -> None:
    scid = entry["parameters"]["scid"]
    body = {**entry, "versionId": "{SCID}"}
    del body["proof"]
    text = json.dumps(body, ensure_ascii=False).replace(scid, "{SCID}")
    need(_multihash(canonical(json.loads(text))) == scid, "the id is not the hash of its beginning")


def _check_proof(entry: Entry, keys: list[str]) -> None:
    body = {name: value for name, value in entry.items() if name != "proof"}
    valid = [proof for proof in entry["proof"] if _verifies(proof, body, keys)]
    need(valid, "no proof by a key that may update")


def _verifies(proof: Entry, body: Entry, keys: list[str]) -> bool:
    key = str(proof["verificationMethod"]).removeprefix("did:key:").partition("#")[0]
    options = {name: value for name, value in proof.items() if name != "proofValue"}
    hashed = b"".join(hashlib.sha256(canonical(one)).digest() for one in (options, body))
    signature = _base58(str(proof["proofValue"])[1:], 64)
    return key in keys and _SODIUM.verifies(key_bytes(key), hashed, signature)


def _check_witness_set(given: Entry) -> None:
    if not given:
        return
    ids = [one["id"] for one in given["witnesses"]]
    need(len(set(ids)) == len(ids), "a witness that is named twice")
    need(1 <= given["threshold"] <= len(ids), "a threshold that nobody or everybody meets")


def _check_witnessed(entries: list[Entry], needs: list[tuple[int, Entry]], witnessed: list[Entry]) -> None:
    versions = {entry["versionId"]: number for number, entry in enumerate(entries, 1)}
    said: dict[str, int] = {}
    for one in witnessed:
        number = versions.get(one["versionId"], 0)  # of another log: it says nothing here
        for proof in one["proof"]:
            key = str(proof["verificationMethod"]).removeprefix("did:key:").partition("#")[0]
            if _verifies(proof, {"versionId": one["versionId"]}, [key]):
                said[f"did:key:{key}"] = max(said.get(f"did:key:{key}", 0), number)
    for number, wanted in needs:
        if wanted:
            count = sum(said.get(one["id"], 0) >= number for one in wanted["witnesses"])
            need(count >= wanted["threshold"], f"version {number} has {count} witnesses")


# did:plc


def check_plc(log: list[Entry]) -> list[bool]:
    """Which operations of a valid log were nullified."""
    kept: list[Entry] = []
    over: dict[str, bool] = {}
    for one in log:
        operation = cast("Entry", one["operation"])
        need(_cid(operation) == one["cid"], "a digest that is another's")
        unsigned = {name: value for name, value in operation.items() if name != "sig"}
        if not kept:
            hashed = digest_text(hashlib.sha256(cbor(operation)).digest())
            need(one["did"] == f"did:plc:{hashed[:24]}", "the id is not the hash of its beginning")
            need(operation["prev"] is None, "a beginning with something before it")
            one["by"] = _signer(unsigned, operation["sig"], _keys(operation))
        else:
            at = next((n for n, old in enumerate(kept) if old["cid"] == operation["prev"]), None)
            need(at is not None, "it follows nothing that stands")
            place = cast("int", at)
            keys = _keys(kept[place]["operation"])
            need(kept[place]["operation"]["type"] != "plc_tombstone", "it follows an end")
            rivals = kept[place + 1 :]
            if rivals:
                keys = keys[: rivals[0]["by"]]
                late = _at(one) - _at(rivals[0])
                need(late <= WINDOW_S, "the window has closed")
            one["by"] = _signer(unsigned, operation["sig"], keys)
            over |= {old["cid"]: True for old in rivals}
            del kept[place + 1 :]
        kept.append(one)
    return [over.get(one["cid"], False) for one in log]


def _keys(operation: Entry) -> list[str]:
    if operation["type"] == "create":  # the form before rotation keys: recovery key, signing key
        return [operation["recoveryKey"], operation["signingKey"]]
    return operation["rotationKeys"]


def _signer(unsigned: Entry, sig: str, keys: list[str]) -> int:
    """The place of the key that signed among those that may."""
    try:
        raw = signature_bytes(sig)
    except BadRecord as error:
        raise Refused(error.message) from None
    for place, key in enumerate(keys):
        if _ecdsa(key, cbor(unsigned), raw):
            return place
    raise Refused("signed by no key that may")


def _ecdsa(key: str, message: bytes, raw: bytes) -> bool:
    found = _base58(key.removeprefix("did:key:z"), 35)
    curve: ec.EllipticCurve = ec.SECP256K1() if found[:2] == b"\xe7\x01" else ec.SECP256R1()
    order = (
        0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
        if found[:2] == b"\xe7\x01"
        else 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    )
    r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    if s > order // 2:
        return False
    public = ec.EllipticCurvePublicKey.from_encoded_point(curve, found[2:])
    try:
        public.verify(utils.encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _cid(operation: Entry) -> str:
    import base64

    raw = b"\x01\x71\x12\x20" + hashlib.sha256(cbor(operation)).digest()
    return "b" + base64.b32encode(raw).decode().rstrip("=").lower()


def _at(one: Entry) -> float:
    return dt.datetime.fromisoformat(one["createdAt"]).timestamp()


def cbor(value: Any) -> bytes:
    """DAG-CBOR of the few kinds of value that these logs have."""
    if value is None:
        return b"\xf6"
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return _head(4, len(items)) + b"".join(map(cbor, items))
    fields = sorted(cast("Entry", value).items(), key=lambda one: (len(one[0]), one[0]))
    return _head(5, len(fields)) + b"".join(cbor(name) + cbor(one) for name, one in fields)


def _head(major: int, size: int) -> bytes:
    if size < 24:
        return bytes([major << 5 | size])
    return bytes([major << 5 | 24, size]) if size < 256 else (bytes([major << 5 | 25]) + size.to_bytes(2, "big"))


def _multihash(raw: bytes) -> str:
    number = int.from_bytes(b"\x12\x20" + hashlib.sha256(raw).digest(), "big")
    chars = ""
    while number:
        number, rest = divmod(number, 58)
        chars = _BASE58[rest] + chars
    return chars


def _base58(text: str, size: int) -> bytes:
    number = 0
    for char in text:
        number = number * 58 + _BASE58.index(char)
    return number.to_bytes(size, "big")
