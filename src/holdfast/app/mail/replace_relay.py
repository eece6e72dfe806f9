"""A relay that is gone for long is replaced by a spare one, if the settings name any.

Relays are asked every few minutes. Since when one gives no answer is kept in the instance folder, so that a worker that
restarts often counts on. A spare relay must answer, and let the agent register, before anything is signed: so nothing
changes while it is this machine that has no network. The relay that is left stays in the profile as one that was left:
mail that waits there is still asked for, and once it is back it forwards. The witnesses of the key log do not change.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.app.mail.shared_keys import mail_speaker
from holdfast.backup.chain.sources import leave_newest_head
from holdfast.core.decoding import decode_json
from holdfast.errors import BadInput, HoldfastError, RelayUnreachable, RelayUntrusted
from holdfast.host.private_files import ensure_private_folder, read_private, write_atomically
from holdfast.identity.acts.log_act import act_lock
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.statements.statements import Relay
from holdfast.identity.witness.relay_link import RelayLink, ask_all
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessRelay, parse_relay_address
from holdfast.relay.client.profile import address_of, find_own_profile, register

FILE = "relays.json"
ASK_EVERY_S = 300.0
_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    gone: str  # urls
    spare: str = ""  # empty: none could be had
    trouble: str = ""


async def replace_gone_relays(home: AgentHome) -> list[Replaced]:
    """What was done; nothing where the settings name no spare relays."""
    if not home.settings.mail.spare_relays:
        return []
    port = Sodium()
    gone = await find_gone(home, now=int(time.time()), port=port)
    return [await asyncio.to_thread(_replace, home, one, port) for one in gone]


async def find_gone(home: AgentHome, *, now: int, port: Signatures) -> list[Relay]:
    """The relays of the profile that have given no answer for `replace_after_s`; remembers what it sees."""
    held = find_own_profile(home)
    relays = () if held is None else held.record.relays
    answers = await ask_all(map(address_of, relays), RelayLink.describe, port=port)
    silent = (RelayUnreachable, RelayUntrusted, OSError)  # a refusal is an answer; one under another key is none
    known = _read(home.instance / FILE)
    since = {one.wit: known.get(one.wit, now) for one in relays if isinstance(answers[address_of(one)], silent)}
    if since != known:
        ensure_private_folder(home.instance)
        write_atomically(home.instance / FILE, msgspec.json.encode(since))
    return [one for one in relays if now - since.get(one.wit, now) >= home.settings.mail.replace_after_s]


def _replace(home: AgentHome, gone: Relay, port: Signatures) -> Replaced:
    trouble = "no spare relay is left"
    with act_lock(home.folder):
        speaker = mail_speaker(home)
        for spare in _spares(home):
            try:
                asyncio.run(register(home, speaker, [spare], now=int(time.time()), port=port, instead_of=gone))
                asyncio.run(leave_newest_head(home, speaker.log(), [spare]))
            except (HoldfastError, OSError) as error:
                trouble = str(error)
                continue
            return Replaced(gone=gone.url, spare=spare.url)
    return Replaced(gone=gone.url, trouble=trouble)


def _spares(home: AgentHome) -> list[WitnessRelay]:
    """Those that the agent neither uses nor has left."""
    held = find_own_profile(home)
    used = () if held is None else (*(one.wit for one in held.record.relays), *held.record.left)
    found: list[WitnessRelay] = []
    for text in home.settings.mail.spare_relays:
        try:
            one = parse_relay_address(text)
        except BadInput:
            continue  # doctor says so
        if not any(str(other).endswith(one.key) for other in used):
            found.append(one)
    return found


def _read(path: Path) -> dict[str, int]:
    try:
        return decode_json(read_private(path, _BYTES_MAX), dict[str, int])
    except (FileNotFoundError, msgspec.DecodeError, HoldfastError):
        return {}
