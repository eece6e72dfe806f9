"""Envelopes and mail keys: what is sealed opens in its own envelope alone, and no key is used before it is safe."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import Agent, make_correspondent

from holdfast.core.clock import LAST_MS, SystemEntropy
from holdfast.core.ids import EffectKey, effect_key_bytes
from holdfast.core.mail import MailKind
from holdfast.errors import BadRecord, HoldfastError, TooLarge
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, digest_of
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.certificate import Certificate, Role
from holdfast.identity.vault import mail_keys
from holdfast.identity.vault.mail_keys import MailKey, mail_keys_in, published, renewed_mail_keys
from holdfast.identity.vault.ring import ESCROW, read_escrow
from holdfast.identity.vault.vault import open_vault
from holdfast.relay.protocol import envelope
from holdfast.relay.protocol.envelope import (
    CT_BYTES,
    ENVELOPE_BYTES_MAX,
    Inner,
    body_digest,
    mail_key,
    open_envelope,
    parse_envelope,
    seal_envelope,
)

NOW = 1_800_000_000
KEY = EffectKey("0af7651c-4f1d-8e2a-9b3c-0123456789ab")
PORT = Sodium()
ENTROPY = SystemEntropy()


def _private(mk: MailKey) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(mk.private)


def _no_key(sender: str, to: str, key: EffectKey) -> bytes:
    return bytes(32)


@dataclass
class Sender:
    agent: Agent
    key: KeyPair
    crt: Signed[Certificate]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Sender]:
    found: list[Sender] = []
    for name in ("ada", "bob"):
        agent, key = make_correspondent(tmp_path_factory.mktemp(name)), KeyPair.new(ENTROPY)
        crt = agent.speaker().certify(
            inst=key.public, role=Role.PRIMARY, incarnation=1, host=digest_of(b"here"), life_s=900
        )
        found.append(Sender(agent, key, crt))
    return found


def sealed(
    sender: Sender, to: AgentId, mk: MailKey, body: bytes = b'"hello"', kind: MailKind = MailKind.MESSAGE
) -> bytes:
    inner = Inner(key=effect_key_bytes(KEY), body=body, thread="t")
    return seal_envelope(inner, kind=kind, to=to, ttl_s=60, key=mk.public(), crt=sender.crt, signer=sender.key)


def test_an_envelope_opens_with_the_recipients_key_and_shows_only_its_size_class(two: list[Sender]) -> None:
    ada, bob = two
    (mk, *_) = bob.agent.speaker().mail_keys()
    found = parse_envelope(sealed(ada, bob.agent.log.id, mk))
    assert (found.sender, found.to, found.is_signed(PORT)) == (ada.agent.log.id, bob.agent.log.id, True)
    assert found.outer.mk == mail_key(ada.agent.log.id, bob.agent.log.id, KEY)
    assert open_envelope(found, _private(mk)).body == b'"hello"'
    sizes = [len(parse_envelope(sealed(ada, found.to, mk, b"x" * n)).outer.ct) for n in (0, 800, 3_900, 15_000, 65_000)]
    assert sizes == [CT_BYTES[0], CT_BYTES[0], *CT_BYTES[1:]]
    assert len(sealed(ada, found.to, mk, b"x" * 65_000)) <= ENVELOPE_BYTES_MAX
    with pytest.raises(TooLarge):
        sealed(ada, found.to, mk, b"x" * 65_536)


def test_a_word_that_the_recipient_asked_for_is_in_the_message_and_nothing_is_where_it_asked_for_none(
    two: list[Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holdfast before it asked for words refuses a message with more than nine parts."""
    sender, to = two[0], two[1].agent.log.id
    (mk,) = renewed_mail_keys(two[1].agent.vault(), ENTROPY, now=NOW)
    parts: list[int] = []
    decoder = msgspec.msgpack.Decoder(Inner)

    class Counting:
        def decode(self, raw: bytes) -> Inner:
            parts.append(len(msgspec.msgpack.decode(raw)))
            return decoder.decode(raw)

    monkeypatch.setattr(envelope, "_INNER", Counting())
    for echo in ("", "word"):
        inner = Inner(key=effect_key_bytes(KEY), body=b"1", echo=echo)
        raw = seal_envelope(
            inner, kind=MailKind.MESSAGE, to=to, ttl_s=60, key=mk.public(), crt=sender.crt, signer=sender.key
        )
        assert open_envelope(parse_envelope(raw), _private(mk)) == inner
    assert parts == [9, 10]


def test_a_ciphertext_opens_in_no_other_envelope(two: list[Sender]) -> None:
    """Bob takes what ada sent to him: as his own mail, to another agent, under another key, it opens nowhere."""
    ada, bob = two
    (mk, *_) = bob.agent.speaker().mail_keys()
    found = parse_envelope(sealed(ada, bob.agent.log.id, mk))
    other_kind = msgspec.structs.replace(found.outer, kind=MailKind.NOTE)
    other_key = msgspec.structs.replace(found.outer, mk=bytes(32))
    own = msgspec.structs.replace(found.outer, crt=bob.crt.line())
    other_to = msgspec.structs.replace(found.outer, to=ada.agent.log.id)
    for changed in (other_kind, other_key, own, other_to):
        raw = msgspec.msgpack.encode(changed)
        again = parse_envelope(msgspec.msgpack.encode([raw, found.signature]))
        assert not again.is_signed(PORT)
        with pytest.raises(BadRecord, match="cannot be opened"):
            open_envelope(again, _private(mk))


def test_only_the_same_words_under_the_same_key_have_the_same_digest(two: list[Sender]) -> None:
    ada, bob = two
    (mk, *_) = bob.agent.speaker().mail_keys()
    digests = [
        parse_envelope(sealed(ada, bob.agent.log.id, mk, body, kind)).outer.bd
        for body, kind in (
            (b'"yes"', MailKind.MESSAGE),
            (b'"yes"', MailKind.MESSAGE),
            (b'"no"', MailKind.MESSAGE),
            (b"{}", MailKind.NOTE),
        )
    ]
    assert digests[0] == digests[1] != digests[2]
    assert digests[3] == bytes(32)
    inner = Inner(key=effect_key_bytes(KEY), body=b'"yes"', thread="t")
    other_key = msgspec.structs.replace(inner, key=bytes(16))
    other_thread = msgspec.structs.replace(inner, thread="u")
    assert body_digest(inner, MailKind.MESSAGE) == digests[0]
    assert len({body_digest(one, MailKind.MESSAGE) for one in (inner, other_key, other_thread)}) == 3


def test_an_envelope_whose_inner_key_is_another_one_is_refused(
    two: list[Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = two
    (mk, *_) = bob.agent.speaker().mail_keys()
    with monkeypatch.context() as changed:
        changed.setattr("holdfast.relay.protocol.envelope.mail_key", _no_key)
        raw = sealed(ada, bob.agent.log.id, mk)
    with pytest.raises(BadRecord, match="not the one that the envelope names"):
        open_envelope(parse_envelope(raw), _private(mk))


@pytest.mark.parametrize("at_ms", [-1, 10**15, 2**63])
def test_a_message_from_a_time_that_no_calendar_has_is_refused(two: list[Sender], at_ms: int) -> None:
    ada, bob = two
    (mk, *_) = bob.agent.speaker().mail_keys()
    for sent_ms in (LAST_MS, at_ms):
        inner = Inner(key=effect_key_bytes(KEY), body=b"1", at_ms=sent_ms)
        raw = seal_envelope(
            inner, kind=MailKind.MESSAGE, to=bob.agent.log.id, ttl_s=60, key=mk.public(), crt=ada.crt, signer=ada.key
        )
        if sent_ms == LAST_MS:
            assert open_envelope(parse_envelope(raw), _private(mk)).at_ms == LAST_MS
            continue
        with pytest.raises(BadRecord, match="cannot be read"):
            open_envelope(parse_envelope(raw), _private(mk))


@pytest.mark.parametrize(
    "raw", [b"", b"\x00", b"\x92\xc4\x00\xc4\x00", bytes(ENVELOPE_BYTES_MAX + 1), b"\xdd" + b"\xff" * 8]
)
def test_what_is_no_envelope_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRecord):
        parse_envelope(raw)


def test_mail_keys_are_renewed_every_week_and_forgotten_when_no_mail_needs_them(two: list[Sender]) -> None:
    vault = two[0].agent.vault()
    first = renewed_mail_keys(vault, ENTROPY, now=NOW)
    assert renewed_mail_keys(vault, ENTROPY, now=NOW + mail_keys.RENEW_S) == first
    second = renewed_mail_keys(vault, ENTROPY, now=NOW + mail_keys.RENEW_S + 1)
    assert second[1:] == first
    assert [one.kid for one in published(second, now=NOW)] == [one.kid for one in second][: mail_keys.PUBLISHED_MAX]
    late = NOW + mail_keys.USE_S + mail_keys.KEEP_S + 1
    third = renewed_mail_keys(vault, ENTROPY, now=late)
    assert second[0] in third
    assert first[0] not in third


def test_a_mail_key_is_in_every_copy_before_it_can_be_used(tmp_path: Path) -> None:
    agent, copies = make_correspondent(tmp_path), tmp_path / "copies"
    (mk, *_) = agent.speaker().mail_keys()
    copy = mail_keys_in(read_escrow(agent.vault()))
    assert copy == (mk,)
    assert (copies / f"{ESCROW}.age").read_bytes() == (agent.vault_folder / f"{ESCROW}.age").read_bytes()
    copies.rename(tmp_path / "away")
    with pytest.raises((HoldfastError, OSError)):
        renewed_mail_keys(open_vault(agent.vault_folder), ENTROPY, now=NOW + 30 * mail_keys.RENEW_S)
    assert agent.speaker().mail_keys() == (mk,)  # the agent goes on with the key that is safe
