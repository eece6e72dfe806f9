"""The acceptance rules one by one: what is taken, what is refused, and for which reason."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import NONCE, SODIUM, Owner, key, receipt, refuse, refused, take, taken, vouched, witnesses

from holdfast.errors import BadRecord
from holdfast.identity.log import drafts
from holdfast.identity.log import log as rules_of_log
from holdfast.identity.log.log import accept, accept_line, add_receipt, witnesses_to_ask
from holdfast.identity.log.log_state import EvidenceKind, KeyLog, LogStanding, is_final
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.records.records import Keys, LogPosition, Record, RotationReason, parse_receipt, parse_record
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, sealed_json

OWNER = Owner()
THIEF = Owner(name="thief")
OLD = frozenset(OWNER.wit.members)


def changed(signed: Signed[Record], signers: tuple[Any, ...], **changes: Any) -> bytes:
    """Any: bodies that the typed drafts would not make."""
    body = {**json.loads(signed.body), **changes}
    body = {name: value for name, value in body.items() if value is not None}
    return sealed_json(None, body, Family.KEL, signers).line()


def verdict(log: KeyLog | None, line: bytes) -> Reason:
    return refused(accept_line(log, line, port=SODIUM))


# inception

K0, K1 = key("owner op 0").public, key("another").public
D0, D1 = digest_of(b"0"), digest_of(b"1")


@pytest.mark.parametrize(
    "changes",
    [
        {"op": {"k": [], "kt": 1}},
        {"op": {"k": [K0], "kt": 0}},
        {"op": {"k": [K0], "kt": 2}},
        {"op": {"k": [K0, K0], "kt": 1}},
        {"op": {"k": [K0], "kt": 1, "more": 1}},
        {"op": {"k": [K0], "kt": True}},
        {"op": {"k": [key(f"k{i}").public for i in range(9)], "kt": 1}},
        {"nxt": {"n": [D0, D0], "nt": 1}},
        {"nxt": {"n": [D0], "nt": 0}},
        {"nxt": {"n": [D0], "nt": 2}},
        {"rec": None},
        {"rec": {"n": [], "nt": 0}},
        {"wit": {"k": [K1], "m": 0}},
        {"wit": {"k": [K1], "m": 2}},
        {"wit": {"k": [K0, K1], "m": 1}},  # two halves could both be final
        {"wit": {"k": [K1, K1], "m": 2}},
        {"wit": None},
        {"nonce": "short"},
        {"nonce": ""},
        {"v": 2},
        {"v": "1"},
        {"t": "new"},
        {"extra": 1},
        {"nxt": {"n": [D0], "nt": 1}, "rec": {"n": [D0], "nt": 1}},
    ],
)
def test_an_inception_that_is_not_whole_is_refused(changes: dict[str, Any]) -> None:
    line = changed(OWNER.inception(), (OWNER.op(0),), **changes)
    assert verdict(None, line) is Reason.MALFORMED


def test_an_inception_is_signed_by_its_own_keys_and_by_nobody_else() -> None:
    inception = OWNER.inception()
    assert verdict(None, changed(inception, (THIEF.op(0),))) is Reason.BAD_SIGNATURE
    assert verdict(None, changed(inception, (OWNER.op(0), THIEF.op(0)))) is Reason.BAD_SIGNATURE
    two = {"k": [OWNER.op(0).public, OWNER.op(1).public], "kt": 2}
    assert verdict(None, changed(inception, (OWNER.op(0),), op=two)) is Reason.TOO_FEW_SIGNATURES
    both = accept_line(None, changed(inception, (OWNER.op(0), OWNER.op(1)), op=two), port=SODIUM)
    assert isinstance(both, KeyLog)
    assert refuse(None, OWNER.rotation(OWNER.begun(), 1)) is Reason.NOT_BEGUN


def test_a_key_commits_to_nothing_it_is_itself() -> None:
    mine = drafts.committed((OWNER.op(0).public,))
    with pytest.raises(BadRecord):
        drafts.inception(op=(OWNER.op(0),), nxt=mine, rec=OWNER_REC, wit=OWNER.wit, nonce=NONCE)
    line = changed(OWNER.inception(), (OWNER.op(0),), nxt={"n": list(mine.members), "nt": 1})
    assert verdict(None, line) is Reason.MALFORMED


OWNER_REC = drafts.committed((OWNER.paper(1).public,))


def test_a_record_of_another_agent_is_refused() -> None:
    log = OWNER.begun()
    assert refuse(log, THIEF.inception()) is Reason.OTHER_ID
    assert refuse(log, THIEF.rotation(THIEF.begun(), 1)) is Reason.OTHER_ID
    assert accept(log, OWNER.inception(), port=SODIUM) is log


# rotation


def test_a_rotation_needs_the_committed_keys_and_those_it_installs() -> None:
    log = OWNER.begun()
    rotation = OWNER.rotation(log, 1)
    assert verdict(log, changed(rotation, (OWNER.next(1),))) is Reason.TOO_FEW_SIGNATURES
    assert verdict(log, changed(rotation, (OWNER.op(1),))) is Reason.TOO_FEW_SIGNATURES
    extra = [OWNER.next(1).public, THIEF.next(1).public]
    signers = (OWNER.next(1), THIEF.next(1), OWNER.op(1))
    assert verdict(log, changed(rotation, signers, by=extra)) is Reason.NOT_COMMITTED
    assert verdict(log, changed(rotation, signers[::2], p=D0)) is Reason.WRONG_PREVIOUS
    assert verdict(log, changed(rotation, signers[::2], s=2)) is Reason.GAP
    assert verdict(log, changed(rotation, signers[::2], g=1)) is Reason.GAP
    assert verdict(log, changed(rotation, signers[::2], s=0)) is Reason.MALFORMED
    same = {"n": [digest_of(OWNER.next(1).public.encode())], "nt": 1}
    assert verdict(log, changed(rotation, signers[::2], nxt=same)) is Reason.MALFORMED
    log = take(log, rotation)
    assert log.operational == Keys((OWNER.op(1).public,), 1)
    assert accept(log, rotation, port=SODIUM) is log


def test_two_of_three_next_keys() -> None:
    some = tuple(key(f"n{i}") for i in range(3))
    first = drafts.inception(
        op=(OWNER.op(0),),
        nxt=drafts.committed([one.public for one in some], 2),
        rec=OWNER_REC,
        wit=OWNER.wit,
        nonce=NONCE,
    )
    log = take(None, first)

    def by(*who: int) -> Signed[Record]:
        return drafts.rotation(
            log,
            by=tuple(some[i] for i in who),
            op=(OWNER.op(1),),
            nxt=drafts.committed((OWNER.next(2).public,)),
            why=RotationReason.PLANNED,
        )

    assert refuse(log, by(0)) is Reason.TOO_FEW_SIGNATURES
    for pair in ((0, 1), (0, 2), (1, 2)):
        assert take(log, by(*pair)).position == (0, 1)


def test_too_many_rotations_wait_for_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_of_log, "ROTATIONS_MAX", 3)
    log = OWNER.begun()
    for number in (1, 2, 3):
        log = OWNER.rotated(log, number)
    assert refuse(log, OWNER.rotation(log, 4)) is Reason.GAP
    assert OWNER.back(log).position == (1, 1)


# receipts and finality


def test_a_record_is_final_with_enough_witnesses_and_stays() -> None:
    log = OWNER.begun()
    mine, his = OWNER.rotation(log, 1), THIEF.rotation(log, 1, by=OWNER.next(1))
    log = vouched(take(log, mine), mine, "w1")
    assert not is_final(log, LogPosition(0, 1))
    log = taken(add_receipt(log, receipt(log, mine, "w1"), port=SODIUM))
    assert not is_final(log, LogPosition(0, 1))  # one witness counts once
    log = vouched(log, mine, "w2")
    assert is_final(log, LogPosition(0, 1))
    after = take(log, his)
    assert after.head.digest == mine.digest
    assert after.standing is LogStanding.ACTIVE
    after = vouched(after, his, "w1", "w2", "w3")  # more lie than the threshold allows for
    assert after.head.digest == mine.digest
    assert refused(add_receipt(log, receipt(log, mine, "stranger"), port=SODIUM)) is (Reason.NOT_A_WITNESS)
    assert refused(add_receipt(log, receipt(log, his, "w1"), port=SODIUM)) is Reason.NOT_HELD


def test_receipts_with_the_record_count_at_once_and_bad_ones_are_left_out() -> None:
    log = OWNER.begun()
    mine, his = OWNER.rotation(log, 1), THIEF.rotation(log, 1, by=OWNER.next(1))
    held = take(log, his)
    some = (receipt(log, mine, "w1"), receipt(log, his, "w2"), receipt(log, mine, "stranger"))
    assert take(held, mine, some).standing is LogStanding.CONTESTED
    final = take(held, mine, (*some, receipt(log, mine, "w3")))
    assert final.head.digest == mine.digest
    assert [item.kind for item in final.evidence] == [EvidenceKind.DISPLACED]
    assert final.standing is LogStanding.ACTIVE


def test_a_final_record_makes_those_before_it_final() -> None:
    log = OWNER.begun()
    first = OWNER.rotation(log, 1)
    log = take(log, first)
    second = OWNER.rotation(log, 2)
    log = vouched(take(log, second), second, "w1", "w3")
    assert is_final(log, LogPosition(0, 1))
    late = THIEF.rotation(OWNER.begun(), 1, by=OWNER.next(1))
    after = take(log, late)
    assert after.standing is LogStanding.ACTIVE
    assert after.head.digest == second.digest


def test_a_displaced_chain_is_kept_as_evidence() -> None:
    log = OWNER.begun()
    his = THIEF.rotation(log, 1, by=OWNER.next(1))
    held = take(log, his)
    held = THIEF.rotated(THIEF.rotated(held, 2), 3)
    mine = OWNER.rotation(log, 1)
    after = take(held, mine, (receipt(log, mine, "w1"), receipt(log, mine, "w2")))
    assert after.position == (0, 1)
    assert [tuple(item.entry.position) for item in after.evidence] == [(0, 1), (0, 2), (0, 3)]


# changes of witnesses

NEW = witnesses("n1", "n2", "n3", needed=2)


def test_a_change_of_witnesses_needs_both_sets_before_anything_follows() -> None:
    log = OWNER.begun()
    change = OWNER.rotation(log, 1, wit=NEW)
    log = take(log, change)
    following = OWNER.rotation(log, 2)
    assert refuse(log, following) is Reason.PREVIOUS_NOT_FINAL
    assert refuse(vouched(log, change, "n1", "n2", "n3"), following) is Reason.PREVIOUS_NOT_FINAL
    assert refuse(vouched(log, change, "w1", "w2", "w3"), following) is Reason.PREVIOUS_NOT_FINAL
    log = take(vouched(log, change, "w1", "w2", "n2", "n3"), following)
    assert refused(add_receipt(log, receipt(log, following, "w1"), port=SODIUM)) is (Reason.NOT_A_WITNESS)
    assert is_final(vouched(log, following, "n1", "n2"), log.position)


def test_a_recovery_is_judged_by_the_witnesses_of_the_recovery_tier() -> None:
    """A thief's own witnesses, installed by a rotation, have no say in the owner's recovery."""
    log = OWNER.begun()
    false = witnesses("false", needed=1)
    his = THIEF.rotation(log, 1, by=OWNER.next(1), wit=false)
    log = vouched(take(log, his), his, "w1", "w2", "false")
    signed = OWNER.recovery(log)
    log = take(log, signed)
    assert refused(add_receipt(log, receipt(log, signed, "false"), port=SODIUM)) is (Reason.NOT_A_WITNESS)
    log = vouched(log, signed, "w2", "w3")
    assert is_final(log, LogPosition(1, 0))
    assert log.head.witnesses == OWNER.wit


def test_made_up_witnesses_do_not_displace_a_recovery_that_waits_for_its_receipts() -> None:
    log = OWNER.begun()
    mine = OWNER.recovery(log)
    false = witnesses("false", needed=1)
    forged = drafts.recovery(
        id=log.id,
        g=1,
        rp=log.head.digest,
        by=(OWNER.paper(1),),
        nxt=drafts.committed((THIEF.next(1).public,)),
        rec=drafts.committed((THIEF.paper(2).public,)),
        wit=false,
    )
    assert witnesses_to_ask(log, forged.record) == OLD
    held = take(log, mine)
    after = take(held, forged, (receipt(log, forged, "false"),), asked=OLD)
    assert after.head.digest == mine.digest
    assert after.standing is LogStanding.CONTESTED
    assert vouched(after, mine, "w1", "w3").standing is LogStanding.LOCKED
    late = take(log, forged, (receipt(log, forged, "false"),), asked=OLD)
    assert late.head.digest == forged.digest  # nobody answered: what a newcomer cannot know


def test_new_witnesses_that_the_old_ones_vouch_for_need_no_asking() -> None:
    log = OWNER.begun()
    signed = OWNER.recovery(log, wit=NEW)
    some = tuple(receipt(log, signed, name) for name in ("n1", "n2", "w1", "w2"))
    assert refused(accept(log, signed, port=SODIUM, receipts=some[:3])) is Reason.ASK_WITNESSES
    assert take(log, signed, some).standing is LogStanding.LOCKED


# recovery and retirement


def test_a_recovery_needs_its_own_keys_and_predecessor() -> None:
    log = OWNER.begun()
    signed = OWNER.recovery(log)
    assert verdict(log, changed(signed, (OWNER.next(1),))) is Reason.BAD_SIGNATURE
    by_next = {"by": [OWNER.next(1).public]}
    assert verdict(log, changed(signed, (OWNER.next(1),), **by_next)) is Reason.NOT_COMMITTED
    assert verdict(log, changed(signed, (OWNER.paper(1),), rp=D0)) is Reason.WRONG_PREVIOUS
    assert verdict(log, changed(signed, (OWNER.paper(1),), g=2)) is Reason.GAP
    assert verdict(log, changed(signed, (OWNER.paper(1),), g=0)) is Reason.MALFORMED
    assert verdict(log, changed(signed, (OWNER.paper(1),), op={"k": [K0], "kt": 1})) is (Reason.MALFORMED)
    mine = {"n": [digest_of(OWNER.paper(1).public.encode())], "nt": 1}
    assert verdict(log, changed(signed, (OWNER.paper(1),), rec=mine)) is Reason.MALFORMED
    locked = take(log, signed)
    assert locked.operational is None
    assert locked.standing is LogStanding.LOCKED


def test_generations_follow_each_other_from_one_paper() -> None:
    log = OWNER.begun()
    for g in (1, 2, 3):
        log = OWNER.back(log, 10 * g)
        assert log.position == (g, 1)
    assert refuse(log, OWNER.rotation(log, 99, by=OWNER.paper_next(2))) is Reason.NOT_COMMITTED


def test_a_retired_identity_stays_retired() -> None:
    log = OWNER.rotated(OWNER.begun(), 1)
    heir = THIEF.begun().id
    signed = drafts.retirement(id=log.id, g=1, rp=log.generations[0].tier.digest, by=(OWNER.paper(1),), heir=heir)
    retired = take(log, signed)
    assert retired.standing is LogStanding.RETIRED
    assert retired.recovery is None
    assert verdict(log, changed(signed, (OWNER.next(1),), by=[OWNER.next(1).public])) is (Reason.NOT_COMMITTED)
    following = drafts.recovery(
        id=log.id,
        g=2,
        rp=signed.digest,
        by=(OWNER.paper(2),),
        nxt=drafts.committed((OWNER.next(9).public,)),
        rec=drafts.committed((OWNER.paper(3).public,)),
    )
    assert refuse(retired, following) is Reason.RETIRED
    rotation = drafts.rotation(
        retired,
        by=(OWNER.next(2),),
        op=(OWNER.op(2),),
        nxt=drafts.committed((OWNER.next(3).public,)),
        why=RotationReason.PLANNED,
    )
    assert refuse(retired, rotation) is Reason.RETIRED


def test_a_recovery_against_a_retirement_is_contested_until_one_is_final() -> None:
    log = OWNER.begun()
    end = drafts.retirement(id=log.id, g=1, rp=log.head.digest, by=(OWNER.paper(1),))
    other = OWNER.recovery(log)
    both = take(take(log, end), other)
    assert both.standing is LogStanding.CONTESTED
    assert vouched(both, end, "w1", "w2").standing is LogStanding.RETIRED
    assert vouched(both, other, "w1", "w2").standing is LogStanding.LOCKED


def test_a_final_recovery_displaces_a_chain_that_a_thief_built_elsewhere() -> None:
    log = OWNER.begun()
    his = drafts.recovery(
        id=log.id,
        g=1,
        rp=log.head.digest,
        by=(OWNER.paper(1),),
        nxt=drafts.committed((THIEF.next(1).public,)),
        rec=drafts.committed((THIEF.paper(2).public,)),
    )
    fooled = take(log, his)
    fooled = THIEF.rotated(fooled, 1)
    fooled = take(fooled, THIEF.recovery(fooled))
    mine = OWNER.recovery(log)
    assert take(fooled, mine).position == (2, 0)
    after = take(fooled, mine, (receipt(log, mine, "w1"), receipt(log, mine, "w2")))
    assert after.head.digest == mine.digest
    assert len(after.evidence) == 3


# lines


def test_a_line_reads_back() -> None:
    log = OWNER.begun()
    for signed in (
        OWNER.inception(),
        OWNER.rotation(log, 1, wit=NEW),
        OWNER.recovery(log, wit=NEW),
        drafts.retirement(id=log.id, g=1, rp=log.head.digest, by=(OWNER.paper(1),)),
    ):
        assert parse_record(signed.line()) == signed


@pytest.mark.parametrize(
    "sig", [[], {}, [["k"]], [["k", "s", "x"]], [[1, 2]], "x", [[K0, "short"]], [[K0, "A" * 85 + "B"]]]
)
def test_signatures_that_are_none(sig: Any) -> None:
    body = json.loads(OWNER.inception().body)
    raw = json.dumps({"b": body, "sig": sig}, separators=(",", ":"), sort_keys=True).encode()
    assert verdict(None, raw) is Reason.MALFORMED


def test_one_key_signs_once() -> None:
    line = changed(OWNER.inception(), (OWNER.op(0), OWNER.op(0)))
    assert verdict(None, line) is Reason.MALFORMED
    assert isinstance(accept_line(None, b"[]", port=SODIUM), Refusal)


def test_a_receipt_that_nobody_signed_or_that_says_more_is_none() -> None:
    log = OWNER.begun()
    signed = OWNER.inception()
    good = receipt(log, signed, "w1")
    bare = replace(good, signatures=())
    assert refused(add_receipt(log, bare, port=SODIUM)) is Reason.BAD_SIGNATURE
    more = sealed_json(None, {**json.loads(good.body), "more": 1}, Family.RCPT, (key("w1"),)).line()
    assert parse_receipt(good.line()) == good
    with pytest.raises(BadRecord, match="more"):
        parse_receipt(more)


def test_a_stranger_does_not_vouch_for_a_recovery_with_new_witnesses() -> None:
    log = OWNER.begun()
    signed = OWNER.recovery(log, wit=witnesses("n1", needed=1))
    log = take(log, signed, asked=OLD)
    for name, wanted in (("stranger", Reason.NOT_A_WITNESS), ("w1", None), ("n1", None)):
        after = add_receipt(log, receipt(log, signed, name), port=SODIUM)
        assert (refused(after) if wanted else None) is wanted
        assert wanted or isinstance(after, KeyLog)
