"""Borders of mail: envelopes, what is sealed in them, what relays answer about mailboxes, and files of both sides."""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import hashlib
import shutil
import tempfile
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from holdfast.core.ids import EffectKey
from holdfast.core.mail import MailKind
from holdfast.errors import BadInput, BadRecord, RelayUntrusted
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.records.signed import Family, sealed
from holdfast.identity.statements.certificate import Certificate, Role
from holdfast.identity.statements.relay_answer import digest_of_request, signed_answer
from holdfast.identity.statements.statements import EncryptionKey, Profile, Relay, judge_profile, parse_profile
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.address_book import AddressBook, Peer
from holdfast.relay.client.chain_check import ChainCheck, ProofFile, _Shown, statement_of
from holdfast.relay.client.channel import Answered, RelayChannel
from holdfast.relay.client.find import Peers, find_peer
from holdfast.relay.protocol import calls
from holdfast.relay.protocol.envelope import (
    _LENGTH,
    _SUITE,
    Envelope,
    Inner,
    _info,
    first_head,
    letter_of,
    mail_key,
    open_envelope,
    parse_envelope,
    seal_envelope,
)
from holdfast.relay.protocol.note import read_note, sealed_note
from holdfast.relay.server.settings import NAME, read_relay_settings
from holdfast.runtime.task.mail_task import mail_submission
from holdfast_proofs.fuzz.borders.identity import LOG
from holdfast_proofs.fuzz.feed import law
from holdfast_proofs.identity_schedules.fake import PORT, signer
from holdfast_proofs.relay_proof import NoProof, verify

NOW = 1_800_000_000
RELAY = signer("relay")
_URL = "https://relay.example"
_KEY = EffectKey("0af7651c-4f1d-8e2a-9b3c-0123456789ab")
_PRIVATE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
_PUBLIC = _PRIVATE.public_key()
_MAIL_KEY = EncryptionKey(kid="k1", key=_PUBLIC.public_bytes_raw().hex(), exp=NOW + 86_400)
CRT = sealed(
    Certificate(
        id=LOG.id,
        g=0,
        s=0,
        inst=signer("instance").public,
        role=Role.PRIMARY,
        e=1,
        iat=NOW,
        exp=NOW + 900,
        host=digest_of(b"fuzz"),
    ),
    Family.CERT,
    (signer("op"),),
)
_INNER = Inner(
    key=bytes.fromhex(_KEY.replace("-", "")),
    body=b'{"hello":"bob"}',
    at_ms=NOW * 1000,
    thread="greetings",
    number=1,
    handles=("ada@relay.example",),
    hints=(f"{_URL}#{RELAY.public}",),
)
_ENCODER = msgspec.msgpack.Encoder()
_NOTE = sealed_note(CRT, signer("instance"), to=LOG.id, keys=(_KEY,), at=NOW)
ENVELOPES = (
    seal_envelope(
        _INNER, kind=MailKind.MESSAGE, to=LOG.id, ttl_s=3_600, key=_MAIL_KEY, crt=CRT, signer=signer("instance")
    ),
)
LETTERS = (_ENCODER.encode(_INNER), _ENCODER.encode(Inner(key=_INNER.key, body=_NOTE)))
_HEAD = first_head(LOG.id)
_STORED = calls.StoredAnswer(
    to=LOG.id, items=(calls.StoredItem(id="11" * 32, seq=1, head="22" * 32, at=NOW),), rank=(0, 0, 1)
)
_LOGIN = calls.LoginAnswer(to=LOG.id, token="t", e=1, first=1, last=1, head="33" * 32, expires_s=900)
_PAGE = calls.MailAnswer(
    to=LOG.id, after=0, head=_HEAD, items=(calls.MailItem(1, bytes(32), NOW, ENVELOPES[0]),), last=1
)
_ACKED = calls.AckAnswer(to=LOG.id, waiting=0, held=1, full=10, first=2)
CONTENTS = (
    *(msgspec.json.encode(one) for one in (_STORED, _LOGIN, _ACKED)),
    msgspec.msgpack.encode(_PAGE),
    b'{"code":"fenced","message":"newer keys","proof":""}',
)
ACKS = (
    msgspec.json.encode(
        calls.Ack(
            rewind=1,
            received=((1, "0" * 64), (2, "1" * 64)),
            mark=3,
            refused=((4, "2" * 64, "why"),),
            secured=2,
            contacts=(LOG.id,),
        )
    ),
)
_PROFILE = sealed(
    Profile(
        id=LOG.id,
        g=0,
        s=0,
        ver=2,
        relays=(Relay(url=_URL, wit=RELAY.public, prio=0, domain="relay.example"),),
        handles=("ada@relay.example",),
        enc=(_MAIL_KEY,),
        policy=(("mail", "contacts"),),
        exp=NOW + 86_400,
    ),
    Family.PROF,
    (signer("op"),),
)
PROFILES = (_PROFILE.line(),)
PEERS = (msgspec.json.encode(Peers(profiles={LOG.id: PROFILES[0].decode()})),)
SETTINGS = (
    b'listen = "127.0.0.1:7411"\nurl = "https://relay.example"\nregistration = "open"\nagents_max = 10\n'
    b'proxies = ["10.0.0.1"]\nmailbox_mib = 1\n',
)
WORDS = (
    b"\x98\x01",
    b"\xc4\x10",
    b"\xa3msg",
    b"\xa4note",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
    b'"seq":-1',
    b'"seq":18446744073709551616',
    b'"last":-1',
    b'"head":"zz"',
    b'"items":[]',
    b'"t":"mail"',
    b'"received":[',
    b"1e999",
    b"tls_cert = ",
    b"[" * 9,
    b"\xed\xa0\x80",
)


def envelope(raw: bytes) -> None:
    """What is read is passed on as it came; what was changed does not open, or is not signed."""
    found = parse_envelope(raw)
    law(found.raw == raw, "an envelope that was written again")
    opened = open_envelope(found, _PRIVATE)
    law(opened == _INNER, "another text under the same seal")
    law(found.is_signed(PORT) or raw not in ENVELOPES, "our own envelope is not signed")


def letter(raw: bytes) -> None:
    """A sender may seal anything; it becomes a task, or is refused as a dead letter."""
    try:
        key = msgspec.msgpack.decode(raw, type=Inner).key
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        key = bytes(16)
    found = _sealed(raw, key)
    inner = open_envelope(found, _PRIVATE)
    with contextlib.suppress(BadRecord):
        read_note(inner.body, CRT, to=LOG.id, port=PORT)
    mail_submission(letter_of(found.sender, inner), k_effect=bytes(32), salt=b"")


def _sealed(plain: bytes, key: bytes) -> Envelope:
    whole = parse_envelope(ENVELOPES[0])
    mk = mail_key(LOG.id, LOG.id, EffectKey(_hex_key(key)))
    padded = (len(plain).to_bytes(_LENGTH, "big") + plain).ljust(16_384 - 48, b"\0")
    ct = _SUITE.encrypt(padded, _PUBLIC, info=_info(LOG.id, LOG.id, MailKind.MESSAGE, mk))
    outer = msgspec.structs.replace(whole.outer, mk=mk, ct=ct)
    return Envelope(
        raw=b"", id=bytes(32), outer=outer, outer_raw=_ENCODER.encode(outer), signature=bytes(64), certificate=CRT
    )


def _hex_key(key: bytes) -> str:
    text = key.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def relay_content(raw: bytes) -> None:
    """A relay can sign any nonsense: it is no statement about a mailbox, or one that the chain takes in."""
    signed = signed_answer(ask=_ASK, status=200, content=raw, now=NOW, signer=RELAY)
    channel = RelayChannel(WitnessRelay(_URL, RELAY.public), PORT)
    for kind in (calls.StoredAnswer, calls.LoginAnswer, calls.AckAnswer):
        with contextlib.suppress(RelayUntrusted):
            channel._read(Answered(raw, signed, "/", ""), kind)
    with contextlib.suppress(RelayUntrusted):
        channel._error(409, channel._refusal(raw))
    said = statement_of(signed, to=LOG.id, key=RELAY.public, port=PORT)
    check = ChainCheck(LOG.id, RELAY.public, _URL, _folder() / "proofs", PORT)
    for content in CONTENTS[:2]:
        whole = signed_answer(ask=_ASK, status=200, content=content, now=NOW, signer=RELAY)
        check.add(statement_of(whole, to=LOG.id, key=RELAY.public, port=PORT))
    check.add(said)


_ASK = digest_of_request("GET", "/v1/relay", "AAAAAAAAAAAAAAAAAAAAAAAA", b"")


def proof(raw: bytes) -> None:
    """The second program reads a proof, or says why it is none."""
    try:
        verify(raw)
    except NoProof as error:
        raise BadInput(str(error)) from None


def profile(raw: bytes) -> None:
    """A relay may serve any profile: the agent's keys signed it, or it changes nothing."""
    signed = parse_profile(raw)
    judge_profile(signed, _PROFILE, LOG, now=NOW, port=PORT)
    book = AddressBook(_folder() / "peers.json", lambda: (), PORT, now=lambda: NOW)
    moved = book.moved(Peer(profile=_PROFILE, log=LOG), raw.decode(errors="replace"))
    law(moved is None or moved.profile.record.rank > _PROFILE.record.rank, "an older profile was taken")
    law(raw in PROFILES or moved is None, "a profile that the agent did not sign")


def peers(raw: bytes) -> None:
    path = _folder() / "peers.json"
    path.touch(0o600)
    path.write_bytes(raw)
    found = find_peer(path, LOG.id)
    if found is None:
        raise BadInput("it does not know the agent")


def relay_settings(raw: bytes) -> None:
    (_folder() / NAME).write_bytes(raw)
    found = read_relay_settings(_folder())
    law(bool(found.url) and bool(found.host_port[0]), "a relay that listens nowhere")


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-mail-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _proofs() -> tuple[bytes, ...]:
    """Two answers of one relay that contradict each other."""
    key = KeyPair(SecretBytes(hashlib.sha256(b"relay").digest()))
    raws = [signed_answer(ask=_ASK, status=200, content=one, now=NOW, signer=key) for one in CONTENTS[:2]]
    shown = tuple(_Shown(answer=base64.b64encode(one).decode(), target="/", nonce="") for one in raws)
    whole = ProofFile(format=1, relay=key.public, url=_URL, mailbox=LOG.id, why="x", answers=shown)
    return (msgspec.json.encode(whole),)


PROOFS = _proofs()
