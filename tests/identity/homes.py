"""Homes of agents with real keys and papers, for tests that need no vault."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cast import SODIUM, Owner, key, receipt, take, taken, witnesses

from holdfast.identity.acts.paper_sheets import PaperSession, open_paper
from holdfast.identity.files.own_log import extend_own_log
from holdfast.identity.files.public_file import change_identity, identity_of, with_log, write_identity
from holdfast.identity.log import drafts
from holdfast.identity.log.log import add_receipt
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.records.records import Record, RotationReason
from holdfast.identity.records.signed import Signed


@dataclass
class Home:
    """An agent whose inception commits to the key of a phrase, in a folder of its own."""

    folder: Path
    phrase: Phrase
    passphrase: str = ""
    owner: Owner = field(default_factory=lambda: Owner(wit=witnesses("w1", needed=1)))
    log: KeyLog = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(0o700, exist_ok=True)
        (self.folder / "holdfast.toml").touch(0o600)
        (self.folder / "holdfast.toml").write_text('agent = "ada"\n')
        keys = PaperKeys(self.phrase, self.passphrase)
        inception = drafts.inception(
            op=(self.owner.op(0),),
            nxt=drafts.committed((self.owner.next(1).public,)),
            rec=drafts.committed((keys.recovery(1).public,)),
            wit=self.owner.wit,
            nonce="AAAAAAAAAAAAAAAAAAAAAA",
        )
        self.log = self._vouched(take(None, inception), inception)
        extend_own_log(self.folder, self.log, SODIUM)
        write_identity(self.folder / "identity.json", identity_of(self.log, name="ada"))

    def session(self) -> PaperSession:
        return open_paper(self.folder)

    def recover(self, successor: Phrase | None = None) -> Signed[Record]:
        """A recovery by the paper; with a successor it commits to other words."""
        g = len(self.log.generations)
        keys = PaperKeys(self.phrase, self.passphrase)
        after = PaperKeys(successor) if successor is not None else keys
        signed = drafts.recovery(
            id=self.log.id,
            g=g,
            rp=self.log.generations[-1].tier.digest,
            by=(keys.recovery(g),),
            nxt=drafts.committed((keys.next(g).public,)),
            rec=drafts.committed((after.recovery(g + 1).public,)),
        )
        self._take(signed)
        rotation = drafts.rotation(
            self.log,
            by=(keys.next(g),),
            op=(self.owner.op(10 + g),),
            nxt=drafts.committed((self.owner.next(20 + g).public,)),
            why=RotationReason.RECOVERED,
        )
        self._take(rotation)
        return signed

    def _take(self, signed: Signed[Record]) -> None:
        self.log = self._vouched(take(self.log, signed), signed)
        extend_own_log(self.folder, self.log, SODIUM)
        change_identity(self.folder / "identity.json", lambda one: with_log(one, self.log))

    def _vouched(self, log: KeyLog, signed: Signed[Record]) -> KeyLog:
        return taken(add_receipt(log, receipt(log, signed, "w1"), port=SODIUM))


def with_relays(folder: Path, *relays: str) -> None:
    change_identity(folder / "identity.json", lambda one: msgspec.structs.replace(one, relays=relays))


__all__ = ["Home", "key", "with_relays"]
