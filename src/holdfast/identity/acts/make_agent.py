"""`holdfast init`: a new agent, or an identity for one that has a journal already.

What is made, in this order, and what a kill between two lines leaves:

    the words are shown     and confirmed: they are worth nothing until the vault is there
    home, holdfast.toml     a folder that says where the vault will be; no agent yet
    witness folders         keys of witnesses that have seen nothing
    vaults, built aside     removed by the next run
    kel.jsonl               the inception, signed by keys that no one else has seen
    identity.json           with a head that is not final: the mark of an unfinished set-up
    the second vault moves  recognised and removed by the next run
    the vault moves         THE MOMENT: from here on the agent exists, with these words
    keys.json               leads to the vault; a ring that was there before is in it
    the inception is sent   as often as needed; receipts.jsonl; identity.json is final: whole

Before the moment a run starts over, with new words, and says that words shown before are worth
nothing. After it a run goes on where the other stopped, and shows no words: they were confirmed.
Nothing is sent to a witness before the moment. Who gives up while the words are shown leaves nothing behind,
so everything that can be refused is refused before them.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from holdfast.core.clock import Entropy
from holdfast.errors import AgentExists, BadInput, KeysReplaced, LogMissing, VaultLocked, VaultMissing
from holdfast.host.private_files import (
    check_can_be_made,
    check_place,
    ensure_private_folder,
    remove_durably,
    write_atomically,
)
from holdfast.identity.acts.log_act import ActResult, LogSession
from holdfast.identity.files.own_log import LOG, RECEIPTS, find_own_log
from holdfast.identity.files.public_file import ImportedKey, identity_of, read_identity, write_identity
from holdfast.identity.journal_keys.keyfile import is_pointer, read
from holdfast.identity.journal_keys.vault_keys import JournalKeys, point_keys, read_keys
from holdfast.identity.log import drafts
from holdfast.identity.log.log import accept
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase, new_phrase
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import key_bytes, key_text
from holdfast.identity.records.records import Commitments
from holdfast.identity.records.signed import Refusal
from holdfast.identity.vault.import_key import Imported
from holdfast.identity.vault.keyset import KeySet, create_vaults, get_op
from holdfast.identity.vault.slots import UnlockKey
from holdfast.identity.vault.vault import Vault, exists, open_vault
from holdfast.identity.witness.open_witnesses import OpenWitnesses, check_new_relays, open_witnesses
from holdfast.identity.witness.witness_folder import SEED
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.engine_settings import Settings
from holdfast.layout.settings import IdentitySettings, read_agent_settings, write_identity_settings
from holdfast.layout.witness_address import WitnessAddress, WitnessFolder, folders_of

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
NONCE_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """What a person has decided. Paths are absolute."""

    name: str
    folder: Path
    vault: Path
    second: Path
    witnesses: tuple[WitnessAddress, ...]
    keys: Sequence[UnlockKey]  # slots of the vault
    second_keys: Sequence[UnlockKey]
    arbiter: str = ""
    imported: Imported | None = None
    today: str = ""

    def settings(self) -> IdentitySettings:
        witnesses = tuple(map(str, self.witnesses))
        return IdentitySettings(
            vault=str(self.vault), second=str(self.second), witnesses=witnesses, arbiter=self.arbiter
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeAgent:
    home: AgentHome
    done: ActResult
    went_on: bool  # an earlier run had made the vault; its words count


def check_name(name: str) -> str:
    """A name is a folder's too, and is printed on paper."""
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a valid name for an agent",
            hint="use up to 64 lower-case letters, digits, - and _; begin with a letter or digit",
        )
    return name


def check_separate(*folders: Path) -> None:
    """None of these folders is another one, or inside of another one. Raises BadInput."""
    for one, other in permutations(folders, 2):
        if one == other or other in one.parents:
            raise BadInput(
                f"{one} is inside {other}", hint="home, vault, second place and witnesses must be separate folders"
            )


def check_unlock_files(folder: Path, files: Sequence[Path]) -> None:
    """None of them is in the agent's folder. Raises BadInput."""
    for one in files:
        if folder in one.parents:
            raise BadInput(
                f"{one} is in the agent's folder: every backup would contain it",
                hint="keep the key that opens a vault outside the agent's folder",
            )


async def make_agent(
    plan: AgentPlan, *, show: Callable[[Phrase], None], entropy: Entropy, port: Signatures
) -> MadeAgent:
    """Make the agent, or finish what a run that was cut short has begun. `show` gives the words to the person and
    returns when they are safe; it is called once, before anything exists that they could open. Raises AgentExists (one
    is there; nothing was changed), VaultExists, VaultMissing, VaultLocked, BadSettings, NotFinal, KeysWrong."""
    check_name(plan.name)
    check_plan(plan)
    went_on = exists(plan.vault)
    if not went_on:
        await check_new_relays(plan.witnesses, port=port)  # before the words: nobody copies them for nothing
    begun = None if went_on else _begin(plan, show=show, entropy=entropy, port=port)
    ensure_private_folder(plan.folder)
    # A journal that was here before the name keeps its ids: a new id for an old request would repeat its effects.
    scope = Settings().scope if os.path.lexists(plan.folder / "keys.json") else ""
    write_identity_settings(plan.folder / "holdfast.toml", name=plan.name, identity=plan.settings(), scope=scope)
    home = load_home(plan.folder)
    reached = open_witnesses(plan.witnesses, port=port, make=True)
    if begun is None:
        vault = open_by(plan.vault, plan.keys)
    else:
        vault = _create(plan, home, reached, begun, entropy=entropy, port=port)
    with vault:
        return MadeAgent(home=home, done=await _finish(home, vault, reached, port), went_on=went_on)


def check_plan(plan: AgentPlan) -> None:
    """What can be refused before anything is made, or anybody is asked for a passphrase."""
    for path in (plan.folder, plan.vault, plan.second):
        check_place(path)
    for path in (plan.folder, *folders_of(plan.witnesses)):
        check_can_be_made(path)
    check_separate(plan.folder, plan.vault, plan.second, *folders_of(plan.witnesses))
    keys = (*plan.keys, *plan.second_keys)
    check_unlock_files(plan.folder, [Path(key.source) for key in keys if key.kind == "file"])
    path = plan.folder / "holdfast.toml"
    if os.path.lexists(path):
        settings = read_agent_settings(path).identity
        if settings.vault and settings != plan.settings() and exists(Path(settings.vault)):
            raise AgentExists(
                f"the agent in {plan.folder} already has a vault in {settings.vault}",
                hint="to finish an interrupted set-up, give the same paths as before",
            )
    if find_whole(plan.folder):
        raise AgentExists(f"there is already an agent in {plan.folder}")


def find_whole(folder: Path) -> bool:
    """Whether a set-up came to its end here."""
    try:
        final = read_identity(folder / "identity.json").head.final
    except LogMissing:
        return False
    keys = folder / "keys.json"
    return final and os.path.lexists(keys) and is_pointer(read(keys))


def _refuse_used(plan: AgentPlan, port: Signatures) -> None:
    """Files of an agent whose vault is not there are its last trace, unless it never lived."""
    log = find_own_log(plan.folder, port)
    if log is not None and (len(list(log.entries())) > 1 or log.head.receipts):
        raise VaultMissing(
            f"{plan.folder} has the key log of {log.id}, but there is no vault in {plan.vault}",
            hint="mount the vault; if it is lost, run `holdfast identity recover`",
        )


@dataclass(frozen=True, slots=True)
class _Begun:
    """What is there before anything is written."""

    recovery: Commitments  # of the words
    recipient: str  # of the words: what is sealed for it, only they open
    ring: JournalKeys | None  # of a journal that was here before the agent


def _begin(plan: AgentPlan, *, show: Callable[[Phrase], None], entropy: Entropy, port: Signatures) -> _Begun:
    """Everything that can be refused, then the words."""
    _refuse_used(plan, port)
    made = [one for one in plan.witnesses if isinstance(one, WitnessFolder) and os.path.lexists(one.folder / SEED)]
    open_witnesses(made, port=port, make=True)
    keys = plan.folder / "keys.json"
    ring = read_keys(keys) if os.path.lexists(keys) else None
    with new_phrase(entropy) as phrase:
        show(phrase)
        with PaperKeys(phrase) as paper, paper.recovery(1) as recovery:
            return _Begun(drafts.committed((recovery.public,)), paper.recipient, ring)


def _create(
    plan: AgentPlan, home: AgentHome, reached: OpenWitnesses, begun: _Begun, *, entropy: Entropy, port: Signatures
) -> Vault:

    def ready(made: KeySet) -> None:
        current = made.current()
        nxt = drafts.committed((key_text(current.next),))
        nonce = base64.urlsafe_b64encode(entropy.bytes(NONCE_BYTES)).decode().rstrip("=")
        with made.get_op(current.op) as op:
            inception = drafts.inception(op=(op,), nxt=nxt, rec=begun.recovery, wit=reached.keys(), nonce=nonce)
        log = accept(None, inception, port=port)
        if isinstance(log, Refusal):
            raise BadInput(f"the key log cannot start with these keys and witnesses: {log.message}")
        remove_durably(home.folder / RECEIPTS)
        write_atomically(home.folder / LOG, inception.line() + b"\n")
        came = plan.imported
        note = came and ImportedKey(key=came.key.public, kind=came.kind, date=plan.today)
        write_identity(home.identity_file, identity_of(log, name=plan.name, imported=note))

    vault, second = create_vaults(
        plan.vault,
        plan.second,
        escrow=begun.recipient,
        keys=plan.keys,
        second_keys=plan.second_keys,
        entropy=entropy,
        ring=begun.ring,
        op=plan.imported and plan.imported.key,
        places=[home.folder],
        ready=ready,
    )
    second.wipe()
    return vault


async def _finish(home: AgentHome, vault: Vault, reached: OpenWitnesses, port: Signatures) -> ActResult:
    log = find_own_log(home.folder, port)
    named = None if log is None else log.operational
    if log is None or named is None:
        raise KeysReplaced(f"the key log in {home.folder} names no valid operational key")
    get_op(vault, key_bytes(named.members[0])).wipe()
    point_keys(home.keys_file, vault)
    session = LogSession(home=home, port=port, reached=reached, log=log)
    return await session.finish(log.head.signed, None)


def open_by(folder: Path, keys: Sequence[UnlockKey]) -> Vault:
    """The vault, by whichever of these keys opens it. Raises VaultLocked."""
    for key in keys[:-1]:
        try:
            return open_vault(folder, given=key)
        except VaultLocked:
            continue
    return open_vault(folder, given=keys[-1])
