"""Mail keys of an agent: which ones every place of its backups has, and those of hosts that share a journal.

Each host makes its own, and each can open mail that was sealed for another's.

One host at a time takes mail in, and others seal mail for the newest keys of the profile, whichever host made them. So
the private halves are in the shared journal too, in one sealed text; its key comes from the effect key of the ring,
which all hosts have. The text is a copy: each host's own keys are in its escrow, and it adds them again. So such a key
is not lost with one machine, and is published without waiting for a backup.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from holdfast.app.binder import keys_of
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.places import read_places
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.decoding import decode_json
from holdfast.errors import HoldfastError
from holdfast.identity.speaker.open_speaker import open_speaker
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.vault.mail_keys import KEEP_S, MailKey, mail_key_json, mail_key_of
from holdfast.journal.admin import SharedState
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome

NAME = "mail-keys"
_NONCE_BYTES = 12


def mail_speaker(home: AgentHome) -> Speaker:
    """Who signs the agent's mail and profile, with the mail keys of all its hosts, and which of them every place has.
    Blocks. Raises what a locked vault or a signer that is away raises."""
    speaker = with_shared_keys(home, open_speaker(home, SystemClock()))
    return cast(Speaker, _CopiedKeysSpeaker(speaker, home))


def find_copied(home: AgentHome) -> int | None:
    """The end of the newest mail key that the escrow at every place has, 0 where that is not known; None where no place
    is waited for: there is none, or hosts share the keys."""
    if journal_at(home.journal).find_shared() is not None:
        return None
    try:
        places, states = read_places(home.places_file), states_of(home).read()
    except HoldfastError:  # a backup says so; mail is opened all the same
        return 0
    return None if not places else min(states[one.name].mail_key_exp if one.name in states else 0 for one in places)


def with_shared_keys(home: AgentHome, speaker: Speaker) -> Speaker:
    """The speaker; where hosts share the journal, one whose mail keys are those of all of them. Blocks."""
    shared = journal_at(home.journal).find_shared()
    if shared is None:
        return speaker
    return cast(Speaker, _SharedKeysSpeaker(speaker, shared, keys_of(home.journal, SystemEntropy()).k_effect))


class _CopiedKeysSpeaker:
    def __init__(self, speaker: Speaker, home: AgentHome) -> None:
        self._speaker, self._home = speaker, home

    def __getattr__(self, name: str) -> Any:  # Any: what the speaker has
        return getattr(self._speaker, name)

    def mail_keys(self) -> tuple[MailKey, ...]:
        keys, copied = self._speaker.mail_keys(), find_copied(self._home)
        return tuple(replace(one, copied=copied is None or one.exp <= copied) for one in keys)


class _SharedKeysSpeaker:
    def __init__(self, speaker: Speaker, shared: SharedState, k_effect: bytes) -> None:
        self._speaker, self._shared = speaker, shared
        self._key = hashlib.sha256(b"holdfast/1/shared-mail-keys\0" + k_effect).digest()

    def __getattr__(self, name: str) -> Any:  # Any: what the speaker has
        return getattr(self._speaker, name)

    def mail_keys(self) -> tuple[MailKey, ...]:
        own, now = self._speaker.mail_keys(), int(time.time())
        found: dict[str, MailKey] = {}

        def change(text: str) -> str:
            there = {one.kid: one for one in _opened(self._key, text)}
            found.clear()
            found.update({one.kid: one for one in (*there.values(), *own) if one.exp + KEEP_S > now})
            return text if found == there else _sealed(self._key, found.values())

        self._shared.change_text(NAME, change)
        return tuple(sorted(found.values(), key=lambda one: (one.exp, one.kid), reverse=True))


def _sealed(key: bytes, keys: Iterable[MailKey]) -> str:
    nonce = os.urandom(_NONCE_BYTES)
    plain = msgspec.json.encode([mail_key_json(one) for one in keys])
    return base64.b64encode(nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, NAME.encode())).decode()


def _opened(key: bytes, text: str) -> list[MailKey]:
    """None where there is no text, or it was sealed under other keys: then it is written again."""
    try:
        raw = base64.b64decode(text, validate=True)
        plain = ChaCha20Poly1305(key).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], NAME.encode())
        return [mail_key_of(one) for one in decode_json(plain, list[dict[str, object]])]
    except (ValueError, KeyError, TypeError, InvalidTag):
        return []
