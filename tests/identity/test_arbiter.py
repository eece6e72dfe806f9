"""Arbiters and the keepers of instances: who may act, until when, and who never may."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import Owner, certificate, key
from quick_agent import Agent, make_agent

from holdfast.core.clock import Clock, SystemEntropy
from holdfast.errors import ArbiterDamaged, InstanceDamaged, NetworkFileSystem
from holdfast.identity.lease.arbiter import SECRET_BYTES, FolderArbiter, LeaseArbiter, StoredArbiter
from holdfast.identity.lease.arbiter_state import ArbiterState, Hearing, LeaseGrant, learn_log
from holdfast.identity.lease.instance import WaitReason
from holdfast.identity.lease.lease_holder import InstanceFile, LeaseHeld, LeaseHolder, LeaseNotHeld
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import AgentId, PublicKey, digest_of
from holdfast.identity.records.records import RotationReason
from holdfast.identity.records.signed import Family, Reason, Refusal, sealed
from holdfast.identity.statements.claim import LEASE_MS, ClaimBasis, LeaseClaim, LeaseYield
from holdfast.identity.witness.witness import LogCopy, copy_of
from holdfast.testing.clocks import ManualClock

ROOT = digest_of(b"state")
MARGIN_MS = LEASE_MS // 10


@dataclass
class Copy:
    """One folder of an agent: its instance folder, its journal's incarnation, its keeper."""

    agent: Agent
    folder: Path
    arbiter: LeaseArbiter
    clock: Clock
    incarnation: int = 1
    raised: list[int] = field(default_factory=list[int])

    def start(self) -> LeaseHolder:
        """As a process that has just begun."""

        def raise_to(e: int) -> None:
            self.incarnation = e
            self.raised.append(e)

        file = InstanceFile(self.folder, id=self.agent.log.id, clock=self.clock, entropy=SystemEntropy())
        return LeaseHolder(
            file=file,
            speaker=self.agent.speaker(self.clock),
            arbiter=self.arbiter,
            clock=self.clock,
            incarnation=lambda: self.incarnation,
            raise_incarnation=raise_to,
            state_root=lambda: ROOT,
        )

    def copied(self, to: Path) -> Copy:
        shutil.copytree(self.folder, to)
        return replace(self, folder=to, raised=[])


class MemoryArbiter(StoredArbiter):
    """Keeps its states in this process; after a restart everything is granted again."""

    def __init__(self, *, clock: Clock, life_ms: int = LEASE_MS) -> None:
        super().__init__(clock=clock, life_ms=life_ms, secret=os.urandom(SECRET_BYTES))
        self._logs: dict[AgentId, KeyLog] = {}
        self._states: dict[AgentId, ArbiterState] = {}
        self._lock = threading.Lock()

    def learn(self, copy: LogCopy, id: AgentId) -> None:
        with self._lock:
            log = learn_log(self._logs.get(id), copy, id, self._port)
            if log is not None:
                self._logs[id] = log

    @contextmanager
    def _alone(self) -> Generator[Hearing]:
        with self._lock:
            yield self._hearing()

    def _find_log(self, id_: AgentId) -> KeyLog | None:
        return self._logs.get(id_)

    def _load(self, id_: AgentId) -> ArbiterState:
        return self._states.get(id_, ArbiterState())

    def _keep(self, id_: AgentId, before: ArbiterState, after: ArbiterState) -> None:
        self._states[id_] = after


Make = Callable[[], Copy]


@pytest.fixture(params=["memory", "folder"])
def clock() -> ManualClock:
    return ManualClock(boot_ms=10 * LEASE_MS)


@pytest.fixture
def arbiter(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> LeaseArbiter:
    if request.node.callspec.params["clock"] == "memory":
        return MemoryArbiter(clock=clock)
    return FolderArbiter(tmp_path / "arbiter", clock=clock)


@pytest.fixture
def copy(tmp_path: Path, arbiter: LeaseArbiter, clock: ManualClock) -> Copy:
    agent = make_agent(tmp_path)
    return Copy(agent=agent, folder=agent.folder / "instance", arbiter=arbiter, clock=clock)


def held(found: LeaseHeld | LeaseNotHeld) -> LeaseHeld:
    assert isinstance(found, LeaseHeld), found
    return found


def why(found: LeaseHeld | LeaseNotHeld) -> WaitReason:
    assert isinstance(found, LeaseNotHeld), found
    return found.why


def key_of(holder: LeaseHolder) -> PublicKey:
    assert holder.instance is not None
    return holder.instance.key


def test_the_first_instance_holds_and_renews_under_one_incarnation(copy: Copy, clock: ManualClock) -> None:
    holder = copy.start()
    first = held(holder.turn())
    assert (first.e, first.until_boot_ms) == (1, clock.boot_ms() + LEASE_MS - MARGIN_MS)
    for _ in range(5):
        clock.advance(LEASE_MS // 4)
        again = held(holder.turn())
        assert (again.e, again.until_boot_ms) == (1, clock.boot_ms() + LEASE_MS - MARGIN_MS)
    clock.advance(5 * LEASE_MS)  # stopped for long; nobody else came
    assert held(holder.turn()).e == 1
    assert held(copy.start().turn()).e == 1  # a new process of the same instance, at once
    assert copy.raised == []


def test_a_new_boot_has_a_new_key_and_the_next_incarnation(copy: Copy, clock: ManualClock) -> None:
    before = copy.start()
    held(before.turn())
    for number in range(3):  # also boots that end before the lease is theirs
        clock.reboot(boot_id=f"boot-{number + 2}")
        holder = copy.start()
        assert why(holder.turn()) is WaitReason.ELSEWHERE
        assert key_of(holder) != key_of(before)
    clock.advance(LEASE_MS - 1)
    assert why(copy.start().turn()) is WaitReason.ELSEWHERE  # the arbiter's machine was started anew too
    clock.advance(1)
    assert held(copy.start().turn()).e == 2
    assert copy.raised == [2]
    stored = json.loads((copy.folder / "key.json").read_bytes())
    assert stored["before"] == []


def test_a_copy_waits_for_ever_and_the_holder_hears_of_it(copy: Copy, clock: ManualClock, tmp_path: Path) -> None:
    live = copy.start()
    held(live.turn())
    other = copy.copied(tmp_path / "copy")
    twin = other.start()
    assert why(twin.turn()) is WaitReason.COPY
    assert key_of(twin) != key_of(live)
    clock.advance(LEASE_MS // 4)
    told = held(live.turn()).contender
    assert told is not None
    assert (told.inst, told.how) == (key_of(twin), ClaimBasis.WAITING)
    clock.advance(100 * LEASE_MS)  # the live one is gone
    assert why(twin.turn()) is WaitReason.COPY
    assert why(other.start().turn()) is WaitReason.COPY
    assert other.raised == []
    other.incarnation = 2  # a person made it a restore
    assert held(twin.turn()).e == 2
    clock.advance(1)
    assert why(live.turn()) is WaitReason.BEHIND
    assert why(copy.start().turn()) is WaitReason.BEHIND


def test_a_folder_put_back_to_an_older_day_waits(copy: Copy, clock: ManualClock) -> None:
    """The file is where it was made, on the machine where it was made: the counter tells."""
    held(copy.start().turn())
    old = (copy.folder / "key.json").read_bytes()
    for _ in range(3):
        clock.advance(1_000)
        held(copy.start().turn())
    (copy.folder / "key.json").write_bytes(old)
    clock.reboot(boot_id="boot-2")
    clock.advance(2 * LEASE_MS)
    assert why(copy.start().turn()) is WaitReason.OLDER
    copy.incarnation = 2
    assert held(copy.start().turn()).e == 2


def test_a_snapshot_resumed_twice_freezes_both_until_the_keys_change(copy: Copy, clock: ManualClock) -> None:
    live = copy.start()
    held(live.turn())
    snapshot = (copy.folder / "key.json").read_bytes()
    clock.advance(1_000)
    held(live.turn())
    (copy.folder / "key.json").write_bytes(snapshot)  # the same machine, boot and folder
    twin = copy.start()
    assert why(twin.turn()) is WaitReason.FROZEN
    assert why(live.turn()) is WaitReason.FROZEN
    clock.advance(10 * LEASE_MS)
    assert why(twin.turn()) is why(live.turn()) is why(copy.start().turn()) is WaitReason.FROZEN
    copy.agent.rotate(RotationReason.STOLEN)
    assert why(live.turn()) is WaitReason.COPY  # neither knows what the other did meanwhile
    copy.incarnation = 2
    assert held(live.turn()).e == 2


def test_a_very_old_snapshot_harms_nobody(copy: Copy, clock: ManualClock) -> None:
    """More messages ago than anybody remembers: it cannot be proven a twin, and gets no lease."""
    live = copy.start()
    held(live.turn())
    snapshot = (copy.folder / "key.json").read_bytes()
    for _ in range(70):
        held(live.turn())
    now = (copy.folder / "key.json").read_bytes()
    (copy.folder / "key.json").write_bytes(snapshot)
    twin = copy.start()
    assert why(twin.turn()) is WaitReason.OLDER
    assert why(twin.turn()) is WaitReason.COPY
    (copy.folder / "key.json").write_bytes(now)
    assert held(live.turn()).e == 1


def test_a_yield_lets_the_named_instance_in_at_once(copy: Copy, clock: ManualClock, tmp_path: Path) -> None:
    live = copy.start()
    held(live.turn())
    other = copy.copied(tmp_path / "copy")
    heir = other.start()
    assert why(heir.turn()) is WaitReason.COPY
    record = LeaseYield(id=copy.agent.log.id, e=1, to=key_of(heir), state_root=ROOT, handoff=digest_of(b"h"))
    said = sealed(record, Family.LEASE, (live.file.signer,))
    assert copy.arbiter.yield_to(said.line()) is None
    assert held(heir.turn()).e == 2
    assert why(live.turn()) is WaitReason.BEHIND
    late = copy.arbiter.yield_to(said.line())
    assert late is not None
    assert late.reason is Reason.OLD_INCARNATION
    assert copy.arbiter.yield_to(b"{}") is not None


def test_keys_that_were_replaced_elsewhere_get_no_lease(copy: Copy) -> None:
    holder = copy.start()
    held(holder.turn())
    folder = copy.agent.vault_folder
    old = (folder / "op.age").read_bytes()
    copy.agent.rotate()
    new = (folder / "op.age").read_bytes()
    (folder / "op.age").write_bytes(old)  # a vault that missed the rotation
    assert why(holder.turn()) is WaitReason.SILENT
    (folder / "op.age").write_bytes(new)
    assert held(holder.turn()).e == 1


def test_an_old_line_repeated_is_refused(copy: Copy, clock: ManualClock) -> None:
    """Nobody but the instance itself renews: what was said once answers an old challenge."""
    owner, arbiter = Owner(), copy.arbiter
    log = owner.begun()
    arbiter.learn(copy_of(log), log.id)
    inst = key("instance")
    shown = certificate(log, owner.op(0), inst=inst.public, iat=clock.wall_ms() // 1000)

    def line(**changes: object) -> bytes:
        record = LeaseClaim(
            id=log.id,
            e=1,
            inst=inst.public,
            crt=shown.digest,
            after_e=0,
            after_how=ClaimBasis.EXPIRED,
            state_root=ROOT,
            chal=arbiter.challenge(log.id, inst.public),
            ctr=1,
            chain=shown.digest,
        )
        record = replace(record, **changes)
        return sealed(record, Family.LEASE, (inst,)).line()

    first = line()
    assert isinstance(arbiter.grant(first, shown.line()), LeaseGrant)
    cases = [
        (arbiter.grant(first, shown.line()), Reason.WRONG_CHALLENGE),
        (arbiter.renew(first, shown.line()), Reason.MALFORMED),
        (arbiter.grant(line(after_how=ClaimBasis.RENEW), shown.line()), Reason.MALFORMED),
        (arbiter.grant(b"{}", shown.line()), Reason.MALFORMED),
        (arbiter.grant(line(), b"{}"), Reason.MALFORMED),
        (arbiter.grant(line(id=Owner(name="other").begun().id), shown.line()), Reason.NOT_BEGUN),
    ]
    for answer, reason in cases:
        assert isinstance(answer, Refusal), answer
        assert answer.reason is reason


def test_the_file_of_another_agent_is_not_used(copy: Copy, tmp_path: Path) -> None:
    held(copy.start().turn())
    (tmp_path / "x").mkdir()
    other = make_agent(tmp_path / "x")
    moved = replace(copy, agent=other)
    holder = moved.start()
    assert held(holder.turn()).e == 1
    assert holder.instance is not None
    assert holder.instance.id == other.log.id
    (copy.folder / "key.json").write_bytes(b"{}")
    with pytest.raises(InstanceDamaged):
        InstanceFile(copy.folder, id=other.log.id, clock=copy.clock, entropy=SystemEntropy()).open(other.log.position)


def test_a_destroyed_key_is_overwritten(copy: Copy, clock: ManualClock) -> None:
    held(copy.start().turn())
    path = copy.folder / "key.json"
    seed = json.loads(path.read_bytes())["seed"].encode()
    with path.open("rb") as old:
        clock.reboot(boot_id="boot-2")
        copy.start().turn()
        assert seed not in old.read()
    assert seed not in path.read_bytes()


@pytest.mark.parametrize("clock", ["folder"], indirect=True)
def test_an_arbiter_whose_file_was_changed_grants_nothing(copy: Copy, tmp_path: Path) -> None:
    holder = copy.start()
    held(holder.turn())
    path = tmp_path / "arbiter" / f"{copy.agent.log.id}.json"
    good = path.read_bytes()
    for bad in (b"", b"{}", good[:-5], good.replace(b'"format":1', b'"format":2'), b"[" * 99):
        path.write_bytes(bad)
        with pytest.raises(ArbiterDamaged):
            copy.arbiter.look(copy.agent.log.id)
        assert why(holder.turn()) is WaitReason.TROUBLE


@pytest.mark.parametrize("clock", ["folder"], indirect=True)
def test_no_arbiter_on_a_network_file_system(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nfs(_path: Path) -> str:
        return "nfs"

    monkeypatch.setattr("holdfast.host.private_files.find_network_fs", nfs)
    with pytest.raises(NetworkFileSystem):
        FolderArbiter(tmp_path / "arbiter", clock=clock)
