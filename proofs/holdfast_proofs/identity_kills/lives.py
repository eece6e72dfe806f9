"""The acts of an identity's life, and what must hold wherever one is cut short.

Looked at from outside, with the witnesses as judges:

* no record is at any witness whose keys are not safe: the operational key that it installs and
  the next key that it commits to are in the vaults and sign;
* the keys that the newest final record names are in the vaults: exactly one set counts;
* at each position every witness holds the same record;
* the act, run again as a person would, ends with a whole agent and the same id.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path

from holdfast.errors import AgentExists, HoldfastError
from holdfast.identity.files.own_log import find_pending
from holdfast.identity.files.public_file import read_identity
from holdfast.identity.log.log_state import KeyLog, LogEntry, LogStanding, is_final
from holdfast.identity.records.encodings import key_bytes, key_digest, key_text, parse_agent_id
from holdfast.identity.records.records import Inception, Recovery, Retirement, Rotation, RotationReason
from holdfast.identity.vault.import_key import read_key_file
from holdfast.identity.vault.keyset import NEXT, OP
from holdfast.identity.vault.ring import open_escrow, read_escrow
from holdfast.identity.vault.vault import exists
from holdfast.identity.witness.observe import merge_copies
from holdfast.identity.witness.witness import copy_of
from holdfast.identity.witness.witness_folder import FolderLogStore
from holdfast.layout.witness_address import WitnessFolder
from holdfast_proofs.support.agents import SODIUM, World


class Life(ABC):
    """One act in a world, from the world that `prepare` leaves."""

    names: tuple[str, ...] = ("w1", "w2", "w3")
    ends: tuple[tuple[int, int], ...] = ()  # positions at which it may end, run once or twice

    def __init__(self, root: Path) -> None:
        self.world = World(root, names=self.names)
        self.id = ""

    def prepare(self) -> None:
        self.world.make()
        self.id = self.world.log().id

    @abstractmethod
    def act(self) -> None:
        """What is killed."""

    def again(self) -> None:
        """What a person does next."""
        self.act()

    def check(self) -> None:
        """Raises AssertionError where something is left that must not be."""
        check_one_record_a_position(self.world)
        judged = judged_log(self.world)
        if judged is None:
            return
        counts = next((one for one in reversed(list(judged.entries())) if one.final), judged.head)
        for entry in {id(one): one for one in (counts, judged.head)}.values():
            if self._is_ours(entry):
                check_keys_safe(self.world, entry)

    def check_whole(self) -> None:
        self.check()
        log = self.world.log()
        assert not self.id or log.id == self.id, "another id"
        assert tuple(log.position) in self.ends, f"ended at {tuple(log.position)}"
        assert is_final(log, log.position), "not final"
        assert find_pending(self.world.folder) is None, "a record is still pending"
        shown = read_identity(self.world.folder / "identity.json")
        assert (shown.id, shown.head.digest, shown.head.final) == (log.id, log.head.digest, True)
        judged = judged_log(self.world)
        assert judged is not None, "no witness holds the log"
        assert judged.head.digest == log.head.digest, "the witnesses hold another head"
        assert not judged.evidence, "a fork was made"
        self.check_end(log)

    def check_end(self, log: KeyLog) -> None:
        assert log.standing is LogStanding.ACTIVE, log.standing
        with self.world.keys() as keys:
            current = keys.current()
            assert key_text(current.op) in (log.operational.members if log.operational else ())
        check_escrow(self.world)

    def _is_ours(self, entry: LogEntry) -> bool:
        """Whether it installs keys; those of a machine that is lost are not looked for."""
        return isinstance(entry.record, Inception | Rotation)


class Make(Life):
    ends = ((0, 0),)

    def prepare(self) -> None:
        pass

    def act(self) -> None:
        self.world.make()

    def again(self) -> None:
        try:
            self.world.make()
        except AgentExists:
            return

    def check_end(self, log: KeyLog) -> None:
        super().check_end(log)
        left = [path.name for path in self.world.root.iterdir() if path.name.startswith(".")]
        assert not left, f"left behind: {left}"
        assert self.world.words, "no words were shown"


class Import(Make):
    """The same with a key that existed before."""

    def prepare(self) -> None:
        import os

        path = self.world.root / "key"
        path.touch(0o600)
        path.write_bytes(os.urandom(32))

    def act(self) -> None:
        self.world.make(read_key_file(self.world.root / "key"))

    def again(self) -> None:
        try:
            self.act()
        except AgentExists:
            return

    def check_end(self, log: KeyLog) -> None:
        super().check_end(log)
        shown = read_identity(self.world.folder / "identity.json")
        assert shown.imported is not None, "the note about the import is lost"
        assert log.operational is not None
        assert shown.imported.key in log.operational.members


class Rotate(Life):
    ends = ((0, 1), (0, 2))

    def act(self) -> None:
        self.world.rotate()


class ChangeWitnesses(Life):
    names = ("w1",)
    ends = ((0, 1), (0, 2))

    def act(self) -> None:
        self.world.rotate(new=("n1", "n2", "n3"))

    def again(self) -> None:
        self.world.rotate()


class Evict(Life):
    ends = ((1, 1), (2, 1))

    def act(self) -> None:
        self.world.evict(self.world.words[0])


class Recover(Life):
    """On a machine that has nothing; the witnesses and the escrow beside a backup are left."""

    ends = ((1, 1),)

    def prepare(self) -> None:
        super().prepare()
        self.world.rotate(RotationReason.PLANNED)
        self.escrow = (self.world.folder / "escrow.age").read_bytes()
        for path in (self.world.folder, self.world.vault, self.world.second):
            shutil.rmtree(path)

    def act(self) -> None:
        self.world.recover(self.world.words[0], escrow=self.escrow)

    def _is_ours(self, entry: LogEntry) -> bool:
        return isinstance(entry.record, Rotation) and entry.record.g > 0


class RecoverFromCard(Recover):
    """All witnesses are gone as well: words and card, and one new witness."""

    names = ("w1",)

    def prepare(self) -> None:
        Life.prepare(self)
        from holdfast.identity.paper.paper import read_card
        from holdfast.identity.witness.witness import LogCopy

        self.copy = LogCopy(records=read_card(self.world.card()), receipts=())
        for path in self.world.root.iterdir():
            shutil.rmtree(path)

    def act(self) -> None:
        self.world.recover(
            self.world.words[0],
            witnesses=(),
            copies=(self.copy,),
            new_witnesses=(WitnessFolder(self.world.root / "n1"),),
        )


class ReplacePaper(Life):
    """New words, named by the old ones; run again with the old words and those that were shown."""

    ends = ((1, 1),)

    def act(self) -> None:
        self.world.replace(self.world.words[0])

    def check_end(self, log: KeyLog) -> None:
        super().check_end(log)
        check_paper_power(self.world, log)


class Retire(Life):
    ends = ((1, 0),)

    def act(self) -> None:
        self.world.retire(self.world.words[0])

    def again(self) -> None:
        from holdfast.errors import NotNow

        try:
            self.act()
        except NotNow:
            return

    def check_end(self, log: KeyLog) -> None:
        assert log.standing is LogStanding.RETIRED


LIVES: dict[str, type[Life]] = {
    "make": Make,
    "import": Import,
    "rotate": Rotate,
    "change-witnesses": ChangeWitnesses,
    "evict": Evict,
    "recover": Recover,
    "recover-from-card": RecoverFromCard,
    "replace-paper": ReplacePaper,
    "retire": Retire,
}


def witnessed(world: World) -> list[KeyLog]:
    """What each witness holds by itself."""
    found: list[KeyLog] = []
    for seed in sorted(world.root.glob("*/witness.seed")):
        store = FolderLogStore(seed.parent, port=SODIUM)
        for path in seed.parent.glob("hf1*.jsonl"):
            log = store.find(parse_agent_id(path.stem))
            if log is not None:
                found.append(log)
    return found


def judged_log(world: World) -> KeyLog | None:
    """What all witnesses hold together."""
    logs = witnessed(world)
    named = (key for log in logs for entry in log.entries() for one in entry.needs for key in one.members)
    copies = [copy_of(log) for log in logs]
    if not copies:
        return None
    return merge_copies(None, copies, id=logs[0].id, port=SODIUM, asked=frozenset(named))


def check_one_record_a_position(world: World) -> None:
    seen: dict[tuple[str, int, int], str] = {}
    for log in witnessed(world):
        assert not log.evidence, "a witness saw two records at one position"
        for entry in log.entries():
            g, s = entry.position
            first = seen.setdefault((log.id, g, s), entry.digest)
            assert first == entry.digest, f"two records at {(g, s)}"


def check_keys_safe(world: World, entry: LogEntry) -> None:
    """Both keys that the record names are in the vaults and sign."""
    record = entry.record
    if isinstance(record, Recovery | Retirement):
        return
    assert exists(world.vault), f"{tuple(entry.position)} is published, and there is no vault"
    with world.keys() as keys:
        op = key_bytes(record.op.members[0])
        with keys.get_op(op) as found:
            assert found.signs_for(op), "the operational key does not sign"
        nexts = [one.next for one in (keys.current(), keys.find_pending()) if one is not None]
        match = [one for one in nexts if key_digest(key_text(one)) in record.nxt.members]
        assert match, f"the next key of {tuple(entry.position)} is not held"
        with keys.get_next(match[0]) as following:
            assert following.signs_for(match[0]), "the next key does not sign"


def check_paper_power(world: World, log: KeyLog) -> None:
    """The words shown last recover the agent and open every escrow; no others do either."""
    from holdfast.identity.paper.derive import PaperKeys, PaperState, paper_fit
    from holdfast.identity.paper.phrase import read_phrase

    for words in world.words:
        newest = words == world.words[-1]
        with read_phrase(words) as phrase, PaperKeys(phrase) as paper, paper.escrow() as identity:
            assert (paper_fit(paper, log).fit is PaperState.CURRENT) == newest, "the wrong words have power"
            for place in (world.folder, world.vault, world.second):
                raw = (place / "escrow.age").read_bytes()
                try:
                    open_escrow(raw, identity)
                    opened = True
                except HoldfastError:
                    opened = False
                assert opened == newest, f"{place.name}: the wrong words open the escrow"


def check_escrow(world: World) -> None:
    """The paper opens the escrow in the home, and it holds what the vault uses."""
    from holdfast.identity.acts.make_agent import open_by
    from holdfast.identity.paper.derive import PaperKeys
    from holdfast.identity.paper.phrase import read_phrase
    from holdfast_proofs.support.agents import UNLOCK

    with open_by(world.vault, [UNLOCK]) as vault:
        assert vault.has(OP)
        assert not vault.has(NEXT)
        used = read_escrow(vault).keys
    raw = (world.folder / "escrow.age").read_bytes()
    opened = 0
    for words in world.words:
        with read_phrase(words) as phrase, PaperKeys(phrase) as paper, paper.escrow() as identity:
            try:
                opened += open_escrow(raw, identity).keys == used
            except HoldfastError:
                continue
    assert opened == 1, f"{opened} of the words that were shown open the escrow"
