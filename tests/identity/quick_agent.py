"""An agent's vaults, log and speaker in a folder, with real keys; quick to make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.core.clock import Clock, SystemClock, SystemEntropy
from holdfast.identity.files.own_log import extend_own_log, read_own_log
from holdfast.identity.log import drafts
from holdfast.identity.log.log import accept
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.records import Keys, RotationReason
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.speaker.open_speaker import VaultSpeaker
from holdfast.identity.vault.age import AgeIdentity
from holdfast.identity.vault.keyset import KeySet, create_vaults
from holdfast.identity.vault.slots import file_key, new_unlock_text
from holdfast.identity.vault.vault import Vault, open_vault

PORT = Sodium()
PAPER = KeyPair(SecretBytes(bytes(range(32))))
WITNESS = KeyPair(SecretBytes(bytes(range(1, 33))))
NEXT_KEYS = KeyPair(SecretBytes(bytes(range(2, 34))))


@dataclass
class Agent:
    """`folder` is its home; the vaults lie beside it, and a key file that opens them."""

    folder: Path
    vault_folder: Path
    second: Path

    @property
    def log(self) -> KeyLog:
        return read_own_log(self.folder, PORT)

    def vault(self) -> Vault:
        return open_vault(self.vault_folder)

    def speaker(self, clock: Clock | None = None) -> VaultSpeaker:
        return VaultSpeaker(self.vault(), read_log=lambda: self.log, clock=clock or SystemClock())

    def rotate(self, why: RotationReason = RotationReason.PLANNED) -> KeyLog:
        """With the keys that the vaults hold, without witnesses."""
        log = self.log
        keys = KeySet(ops=self.vault(), nexts=open_vault(self.second))
        current, staged = keys.current(), keys.stage(SystemEntropy())
        record = drafts.rotation(
            log,
            by=(keys.get_next(current.next),),
            op=(keys.get_op(staged.op),),
            nxt=drafts.committed((keys.get_next(staged.next).public,)),
            why=why,
        )
        after = accept(log, record, port=PORT)
        assert isinstance(after, KeyLog), after
        extend_own_log(self.folder, after, PORT)
        keys.settle(op=staged.op)
        return after


def make_agent(place: Path, *, home: str = "home", settings: str = "") -> Agent:
    """A new agent below this folder: home/, vault/, second/, unlock."""
    entropy = SystemEntropy()
    text = new_unlock_text(entropy)
    unlock = place / "unlock"
    unlock.write_bytes(text)
    unlock.chmod(0o600)
    folder = place / home
    folder.mkdir(mode=0o700)
    agent = Agent(folder=folder, vault_folder=place / "vault", second=place / "second")
    vault, nexts = create_vaults(
        agent.vault_folder,
        agent.second,
        escrow=AgeIdentity.new(entropy).recipient,
        keys=[file_key(unlock, text)],
        second_keys=[file_key(unlock, text)],
        entropy=entropy,
    )
    keys = KeySet(ops=vault, nexts=nexts)
    current = keys.current()
    first = drafts.inception(
        op=(keys.get_op(current.op),),
        nxt=drafts.committed((keys.get_next(current.next).public,)),
        rec=drafts.committed((PAPER.public,)),
        wit=Keys((WITNESS.public,), 1),
        nonce="nonce-nonce-nonce-nonce",
    )
    log = accept(None, first, port=PORT)
    assert isinstance(log, KeyLog), log
    extend_own_log(folder, log, PORT)
    toml = folder / "holdfast.toml"
    toml.write_text(f'agent = "ada"\n\n[identity]\nvault = "{agent.vault_folder}"\n{settings}')
    toml.chmod(0o600)
    return agent
