"""Records that the home did not make are found, and told by whose power they were signed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cast import Owner, take, vouched

from holdfast.identity.log import drafts
from holdfast.identity.log.log_state import Log
from holdfast.identity.records.records import Position
from holdfast.identity.witness.monitor import Power, find_strange

OWNER, THIEF = Owner(), Owner(name="thief")


def shown(own: Log, seen: Log) -> list[tuple[Position, Power, str, bool]]:
    return [(one.position, one.power, one.what, one.stands) for one in find_strange(own, seen)]


def test_nothing_is_strange_in_what_the_home_has_or_is_about_to_publish() -> None:
    own = OWNER.begun()
    rotation = OWNER.rotation(own, 1)
    assert find_strange(own, own) == ()
    assert find_strange(own, take(own, rotation), (rotation.digest,)) == ()
    assert find_strange(take(own, rotation), own) == ()


def test_a_recovery_that_the_home_did_not_make_is_the_papers() -> None:
    own = OWNER.begun()
    recovery = OWNER.recovery(own)
    found = find_strange(own, take(own, recovery))
    assert [one.digest for one in found] == [recovery.digest]
    assert shown(own, OWNER.back(own)) == [
        (Position(1, 0), Power.PAPER, "a recovery", True),
        (Position(1, 1), Power.NEXT, "a rotation", True),
    ]
    retired = drafts.retirement(id=own.id, g=1, rp=own.generations[0].tier.digest, by=(OWNER.paper(1),))
    expected = [(Position(1, 0), Power.PAPER, "the retirement of the identity", True)]
    assert shown(own, take(own, retired)) == expected


def test_a_rival_of_our_own_record_is_seen_among_the_evidence() -> None:
    before = OWNER.begun()
    mine, his = OWNER.rotation(before, 1), THIEF.rotation(before, 1, by=OWNER.next(1))
    own = vouched(take(before, mine), mine, "w1", "w2")
    seen = take(own, his)
    assert shown(own, seen) == [(Position(0, 1), Power.NEXT, "a rotation", False)]
    assert shown(seen, seen) == []
