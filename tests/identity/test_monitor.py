"""Records that the home did not make are found, and told by whose power they were signed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cast import Owner, take, vouched

from holdfast.identity.log import drafts
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.records import LogPosition
from holdfast.identity.witness.observe import SigningPower, find_foreign_records

OWNER, THIEF = Owner(), Owner(name="thief")


def shown(own: KeyLog, seen: KeyLog) -> list[tuple[LogPosition, SigningPower, str, bool]]:
    return [(one.position, one.power, one.what, one.stands) for one in find_foreign_records(own, seen)]


def test_nothing_is_strange_in_what_the_home_has_or_is_about_to_publish() -> None:
    own = OWNER.begun()
    rotation = OWNER.rotation(own, 1)
    assert find_foreign_records(own, own) == ()
    assert find_foreign_records(own, take(own, rotation), (rotation.digest,)) == ()
    assert find_foreign_records(take(own, rotation), own) == ()


def test_a_recovery_that_the_home_did_not_make_is_the_papers() -> None:
    own = OWNER.begun()
    recovery = OWNER.recovery(own)
    found = find_foreign_records(own, take(own, recovery))
    assert [one.digest for one in found] == [recovery.digest]
    assert shown(own, OWNER.back(own)) == [
        (LogPosition(1, 0), SigningPower.PAPER, "a recovery", True),
        (LogPosition(1, 1), SigningPower.NEXT, "a rotation", True),
    ]
    retired = drafts.retirement(id=own.id, g=1, rp=own.generations[0].tier.digest, by=(OWNER.paper(1),))
    expected = [(LogPosition(1, 0), SigningPower.PAPER, "the retirement of the identity", True)]
    assert shown(own, take(own, retired)) == expected


def test_a_rival_of_our_own_record_is_seen_among_the_evidence() -> None:
    before = OWNER.begun()
    mine, his = OWNER.rotation(before, 1), THIEF.rotation(before, 1, by=OWNER.next(1))
    own = vouched(take(before, mine), mine, "w1", "w2")
    seen = take(own, his)
    assert shown(own, seen) == [(LogPosition(0, 1), SigningPower.NEXT, "a rotation", False)]
    assert shown(seen, seen) == []
