"""The roster: who may sign it, which one counts, what two of one rank are; and the key of an enrolled folder."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import SODIUM, Owner, key, other_id, take

from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import BadRecord, InstanceDamaged
from holdfast.identity.files.roster_file import ROSTER, join_roster, read_roster
from holdfast.identity.lease.enrolment import NAME, destroy_enrolment, find_enrolment, keep_enrolment
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import PublicKey
from holdfast.identity.records.records import RotationReason
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Reason, Signed
from holdfast.identity.statements.certificate import Role
from holdfast.identity.statements.roster import (
    Enrolled,
    Roster,
    find_fault_in_roster,
    join_rosters,
    next_rank,
    parse_roster,
)
from holdfast_proofs.identity_schedules.fake import sign_roster

OWNER = Owner()
LOG = OWNER.begun()
ONE = Enrolled(name="north", key=key("north").public, role=Role.PRIMARY, host="north.example")
TWO = Enrolled(name="south", key=key("south").public, role=Role.STANDBY, host="south")


def roster(*instances: Enrolled, ver: int = 1, op: int = 0, **at: object) -> Signed[Roster]:
    fields = {"id": LOG.id, "g": 0, "s": 0, **at}
    return sign_roster(Roster(ver=ver, instances=instances, **fields), OWNER.op(op))  # pyright: ignore[reportArgumentType]


def fault(signed: Signed[Roster], log: KeyLog = LOG) -> Reason | None:
    found = find_fault_in_roster(signed, log, port=SODIUM)
    return None if found is None else found.reason


def test_a_roster_reads_back_as_it_was_signed() -> None:
    signed = roster(ONE, TWO)
    assert parse_roster(signed.line()) == signed
    assert fault(signed) is None
    assert fault(roster()) is None  # all were removed


@pytest.mark.parametrize(
    "listed",
    [
        (ONE, replace(TWO, name="north")),
        (ONE, replace(TWO, key=ONE.key)),
        (replace(ONE, role=Role.SHADOW),),
        (replace(ONE, role=Role.REPLICA),),
        (replace(ONE, name="../x"),),
        (replace(ONE, name=""),),
        (replace(ONE, host="two words"),),
        tuple(replace(ONE, name=f"n{n}", key=key(f"n{n}").public) for n in range(9)),
    ],
)
def test_what_no_roster_can_say_is_refused(listed: tuple[Enrolled, ...]) -> None:
    with pytest.raises(BadRecord):
        roster(*listed)
    with pytest.raises(BadRecord):
        roster(ONE, ver=0)


def test_only_the_keys_of_this_agent_at_that_position_sign_it() -> None:
    assert fault(roster(ONE, op=1)) is Reason.BAD_SIGNATURE
    assert fault(roster(ONE, id=other_id())) is Reason.OTHER_ID
    assert fault(roster(ONE, s=1)) is Reason.GAP
    unsigned = parse_roster(roster(ONE).line())
    none = replace(unsigned, signatures=())
    assert fault(none) is Reason.TOO_FEW_SIGNATURES


def test_it_outlives_planned_rotations_and_no_other_change_of_keys() -> None:
    signed = roster(ONE)
    planned = OWNER.rotated(LOG, 1)
    assert fault(signed, planned) is None
    assert fault(roster(ONE, ver=7, op=1), planned) is Reason.BAD_SIGNATURE  # new keys, old position
    for why in (RotationReason.STOLEN, RotationReason.RECOVERED):
        after = take(planned, OWNER.rotation(planned, 2, why=why))
        assert fault(signed, after) is Reason.OLD_KEYS
        assert not join_rosters((signed.line(),), after, port=SODIUM)
    assert fault(signed, OWNER.back(LOG)) is Reason.OLD_KEYS
    assert fault(signed, take(LOG, OWNER.recovery(LOG))) is Reason.LOCKED


def test_the_newest_wins_in_any_order_and_a_higher_position_beats_any_version() -> None:
    log = OWNER.rotated(LOG, 1)
    first, second, thief = roster(ONE), roster(ONE, TWO, ver=2), roster(TWO, ver=99)
    newest = roster(TWO, s=1, op=1)
    for lines in itertools.permutations([first.line(), second.line(), thief.line(), newest.line(), b"{"]):
        view = join_rosters(lines, log, port=SODIUM)
        assert view.rank == (0, 1, 1)
        assert view.enrolled == (TWO,)
        assert not view.forked
        assert next_rank(view, log) == 2
    assert next_rank(join_rosters((second.line(),), LOG, port=SODIUM), LOG) == 3
    assert next_rank(join_rosters((second.line(),), log, port=SODIUM), log) == 1


def test_of_two_with_one_rank_neither_is_chosen_and_only_what_both_say_counts() -> None:
    ours, theirs = roster(ONE, TWO, ver=2), roster(ONE, replace(TWO, role=Role.PRIMARY), ver=2)
    views = [join_rosters((a.line(), b.line()), LOG, port=SODIUM) for a, b in ((ours, theirs), (theirs, ours))]
    assert views[0] == views[1]
    view = views[0]
    assert view.forked
    assert set(view.lines()) == {ours.line(), theirs.line()}  # both are kept: that is the proof
    assert view.enrolled == (ONE,)
    assert view.find(TWO.key) is None
    settled = join_rosters((*view.lines(), roster(ONE, TWO, ver=3).line()), LOG, port=SODIUM)
    assert not settled.forked
    assert settled.find(TWO.key) == TWO


def test_the_file_joins_what_it_hears(tmp_path: Path) -> None:
    assert not read_roster(tmp_path, LOG, SODIUM)
    assert join_roster(tmp_path, (roster(ONE, TWO, ver=2).line(), b"torn"), LOG, SODIUM).enrolled == (ONE, TWO)
    assert join_roster(tmp_path, (roster(ONE).line(),), LOG, SODIUM).enrolled == (ONE, TWO)
    assert (tmp_path / ROSTER).stat().st_mode & 0o777 == 0o600
    stolen = take(LOG, OWNER.rotation(LOG, 1, why=RotationReason.STOLEN))
    before = (tmp_path / ROSTER).read_bytes()
    assert not join_roster(tmp_path, (), stolen, SODIUM)
    assert (tmp_path / ROSTER).read_bytes() == before


class Boot(SystemClock):
    def __init__(self, boot_id: str) -> None:
        super().__init__()
        self.boot_id = boot_id


def enrol(folder: Path, boot: str = "one") -> PublicKey:
    with KeyPair.new(SystemEntropy()) as made:
        keep_enrolment(folder, made, id=LOG.id, clock=Boot(boot))
        return made.public


def found(folder: Path, boot: str = "one") -> PublicKey | None:
    key = find_enrolment(folder, id=LOG.id, clock=Boot(boot))
    return None if key is None else key.public


def test_the_key_outlives_the_boot_and_not_the_folder(tmp_path: Path) -> None:
    home = tmp_path / "instance"
    assert find_enrolment(tmp_path, id=LOG.id, clock=Boot("one")) is None
    public = enrol(home)
    assert found(home) == public
    assert found(home, "two") == public
    assert found(home, "two") == public
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    with open(copy / NAME, "rb") as old:
        assert found(copy, "two") is None
        assert not (copy / NAME).exists()
        assert set(old.read()) == {0}  # the seed is overwritten, not only unnamed
    assert found(home, "two") == public
    os.rename(home, tmp_path / "moved")  # the same folder under another name
    assert found(tmp_path / "moved", "two") == public


def test_another_machine_or_another_agent_has_no_key_here(tmp_path: Path) -> None:
    home = tmp_path / "instance"
    enrol(home)
    raw = msgspec.json.decode((home / NAME).read_bytes())
    raw["site"]["machine"] = "a" * 52
    (home / NAME).write_bytes(msgspec.json.encode(raw))
    assert found(home) is None
    assert not (home / NAME).exists()
    enrol(home)
    assert find_enrolment(home, id=other_id(), clock=Boot("one")) is None
    assert not (home / NAME).exists()
    destroy_enrolment(home)
    (home / NAME).touch(0o600)
    with pytest.raises(InstanceDamaged, match="malformed"):
        found(home)
