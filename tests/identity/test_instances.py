"""Certificates, profiles, claims and yields: who may speak, and which instance is the primary."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

sys.path.insert(0, str(Path(__file__).parent))

from cast import NOW, SODIUM, Owner, certificate, key, refused, take

from holdfast.errors import BadRecord
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.records.records import RotationReason
from holdfast.identity.records.signed import Family, Reason, Signed, sealed
from holdfast.identity.statements.certificate import (
    GRACE_S,
    Certificate,
    ObserverState,
    Role,
    find_fault_in_certificate,
    parse_certificate,
)
from holdfast.identity.statements.claim import (
    LEASE_MS,
    WINDOW,
    AgentLease,
    ClaimBasis,
    ClaimVerdict,
    LeaseClaim,
    LeaseYield,
    MessageChain,
    follow_chain,
    judge_claim,
    new_chain,
    parse_claim,
    parse_yield,
    yielded,
)
from holdfast.identity.statements.statements import (
    EncryptionKey,
    Profile,
    Relay,
    judge_profile,
    parse_profile,
    profile_stands,
)

OWNER = Owner()
LOG = OWNER.begun()
MOMENT = ObserverState(now=NOW, head_seen_at=NOW)
CHALLENGE = "challenge-challenge"
ROOT = digest_of(b"state")


def fault(shown: Signed[Certificate], log: KeyLog = LOG, **moment: int) -> Reason | None:
    found = find_fault_in_certificate(shown, log, replace(MOMENT, **moment), port=SODIUM)
    return None if found is None else found.reason


# certificates


def test_a_certificate_counts_until_it_expires() -> None:
    shown = certificate(LOG, OWNER.op(0))
    assert parse_certificate(shown.line()) == shown
    assert fault(shown) is None
    assert fault(shown, now=NOW + 899) is None
    assert fault(shown, now=NOW + 900) is Reason.EXPIRED
    assert fault(shown, now=NOW - 60) is None
    assert fault(shown, now=NOW - 61) is Reason.TOO_EARLY
    assert fault(certificate(LOG, OWNER.op(0), life_s=3600)) is None
    assert fault(certificate(LOG, OWNER.op(0), life_s=3601)) is Reason.TOO_LONG
    assert fault(certificate(LOG, OWNER.op(0), life_s=0)) is Reason.TOO_LONG
    assert fault(shown, incarnation=1) is None
    assert fault(shown, incarnation=2) is Reason.OLD_INCARNATION
    assert fault(certificate(LOG, OWNER.next(1))) is Reason.BAD_SIGNATURE
    assert fault(shown, Owner(name="other").begun()) is Reason.OTHER_ID
    assert fault(replace(shown, signatures=())) is Reason.TOO_FEW_SIGNATURES


@pytest.mark.parametrize("why", list(RotationReason))
def test_only_a_planned_rotation_leaves_ten_minutes(why: RotationReason) -> None:
    shown = certificate(LOG, OWNER.op(0))
    after = take(LOG, OWNER.rotation(LOG, 1, why=why))
    expected = None if why is RotationReason.PLANNED else Reason.OLD_KEYS
    assert fault(shown, after) is expected
    assert fault(shown, after, now=NOW + GRACE_S) is expected
    assert fault(shown, after, now=NOW + GRACE_S + 1) is Reason.OLD_KEYS
    assert fault(shown, after, head_seen_at=NOW + 5) is Reason.OLD_KEYS  # a clock set back
    twice = OWNER.rotated(after, 2)
    assert fault(shown, twice) is Reason.OLD_KEYS


def test_nobody_speaks_for_a_locked_identity() -> None:
    locked = take(LOG, OWNER.recovery(LOG))
    assert fault(certificate(LOG, OWNER.op(0)), locked) is Reason.LOCKED
    assert fault(certificate(locked, OWNER.paper(1)), locked) is Reason.LOCKED
    assert fault(certificate(locked, OWNER.paper_next(1)), locked) is Reason.LOCKED


# profiles


def profile(log: KeyLog = LOG, signer: Any = None, **changes: Any) -> Signed[Profile]:
    g, s = log.position
    record = Profile(
        id=log.id,
        g=g,
        s=s,
        ver=1,
        relays=(Relay(url="https://relay.example", wit=key("w1").public, prio=1, domain="example"),),
        handles=("ada@relay.example",),
        enc=(EncryptionKey(kid="1", key="abc", exp=NOW + 9),),
        policy=(("max", 3), ("open", True)),
        exp=NOW + 1000,
        left=("https://old.example",),
    )
    record = replace(record, **changes)
    return sealed(record, Family.PROF, (signer or OWNER.op(0),))


def test_the_newest_profile_of_the_speaking_keys_wins() -> None:
    first = profile()
    assert parse_profile(first.line()) == first
    held = judge_profile(first, None, LOG, now=NOW, port=SODIUM)
    assert held is first
    assert judge_profile(first, first, LOG, now=NOW, port=SODIUM) is first
    other = profile(exp=NOW + 5)
    assert refused(judge_profile(other, first, LOG, now=NOW, port=SODIUM)) is Reason.FORK
    newer = profile(ver=2)
    assert refused(judge_profile(first, newer, LOG, now=NOW, port=SODIUM)) is Reason.OLD_VERSION
    assert judge_profile(newer, first, LOG, now=NOW, port=SODIUM) is newer
    assert refused(judge_profile(newer, first, LOG, now=NOW + 1000, port=SODIUM)) is Reason.EXPIRED
    foreign = profile(signer=OWNER.next(1))
    assert refused(judge_profile(foreign, None, LOG, now=NOW, port=SODIUM)) is Reason.BAD_SIGNATURE


def test_a_thiefs_profile_loses_to_the_next_position_whatever_its_number() -> None:
    thiefs = profile(ver=10**9)
    after = take(LOG, OWNER.rotation(LOG, 1, why=RotationReason.STOLEN))
    mine = profile(after, OWNER.op(1), ver=0)
    assert judge_profile(mine, thiefs, after, now=NOW, port=SODIUM) is mine
    late = profile(ver=10**9 + 1)
    assert refused(judge_profile(late, mine, after, now=NOW, port=SODIUM)) is Reason.OLD_KEYS
    assert not profile_stands(thiefs.record, after, now=NOW)
    planned = OWNER.rotated(LOG, 1)
    assert profile_stands(thiefs.record, planned, now=NOW)
    assert not profile_stands(thiefs.record, planned, now=NOW + 1000)
    assert not profile_stands(thiefs.record, OWNER.back(LOG), now=NOW)


@pytest.mark.parametrize(
    "changes",
    [
        {"handles": ("no relay",)},
        {"handles": ("ada@x", "ada@x")},
        {"left": ("ftp://x",)},
        {"left": ("wss://x",)},
        {"policy": tuple((f"p{i}", 1) for i in range(17))},
        {"relays": (Relay(url="file:///x", wit=key("w1").public, prio=1, domain="x"),)},
        {"relays": (Relay(url="https://x", wit=key("w1").public, prio=-1, domain="x"),)},
        {"ver": -1},
    ],
)
def test_a_profile_that_is_not_whole_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadRecord):
        parse_profile(profile(**changes).line())


@pytest.mark.parametrize(
    "url",
    [
        "https://[",
        "https://h:99999",
        "https://a..b",
        "https://" + 64 * "a" + ".example",
        "http://10.0.0.5",
        "https://relay.example/x",
    ],
)
def test_a_profile_with_an_address_that_no_relay_has_is_refused_and_can_be_read(url: str) -> None:
    relay = Relay(url=url, wit=key("w1").public, prio=1, domain="x")
    for stored in (profile(relays=(relay,)), profile(left=(f"{url}#{relay.wit}",))):
        assert parse_profile(stored.line()) == stored
        assert refused(judge_profile(stored, None, LOG, now=NOW, port=SODIUM)) is Reason.MALFORMED
        assert judge_profile(stored, stored, LOG, now=NOW, port=SODIUM) is stored, "it was taken before"
        newer = profile(ver=2)
        assert judge_profile(newer, stored, LOG, now=NOW, port=SODIUM) is newer


# claims


INSTANCE, OTHER = key("instance"), key("other instance")


def claim(shown: Signed[Certificate], signer: Any = INSTANCE, *, e: int = 1, **changes: Any) -> Signed[LeaseClaim]:
    record = LeaseClaim(
        id=LOG.id,
        e=e,
        inst=signer.public,
        crt=shown.digest,
        after_e=0,
        after_how=ClaimBasis.EXPIRED,
        state_root=ROOT,
        chal=CHALLENGE,
        ctr=1,
        chain=shown.digest,
    )
    record = replace(record, **changes)
    return sealed(record, Family.LEASE, (signer,))


def judged(
    said: Signed[LeaseClaim],
    shown: Signed[Certificate],
    held: AgentLease | None = None,
    *,
    chain: MessageChain | None = None,
    log: KeyLog = LOG,
    clock_ms: int = 0,
) -> ClaimVerdict:
    return judge_claim(
        said,
        shown,
        held,
        chain or new_chain(shown.digest),
        log,
        MOMENT,
        clock_ms=clock_ms,
        challenge=CHALLENGE,
        port=SODIUM,
    )


def granted(found: ClaimVerdict) -> AgentLease:
    assert found.refusal is None, found.refusal
    assert found.lease is not None
    return found.lease


SHOWN = certificate(LOG, OWNER.op(0))
SECOND = certificate(LOG, OWNER.op(0), inst=OTHER.public)


def test_a_lease_is_granted_once_and_the_next_only_when_it_is_free() -> None:
    said = claim(SHOWN)
    assert parse_claim(said.line()) == said
    held = granted(judged(said, SHOWN))
    assert (held.e, held.until_ms) == (1, LEASE_MS)
    second = claim(SECOND, OTHER, e=2, after_e=1)
    early = judged(second, SECOND, held, clock_ms=LEASE_MS - 1)
    assert refused(early.refusal) is Reason.HELD
    assert early.lease is held
    assert granted(judged(second, SECOND, held, clock_ms=LEASE_MS)).e == 2
    low = judged(claim(SECOND, OTHER, e=1, after_e=1), SECOND, held, clock_ms=LEASE_MS)
    assert refused(low.refusal) is Reason.OLD_INCARNATION
    wrong = claim(SECOND, OTHER, e=3, after_e=2)
    assert refused(judged(wrong, SECOND, held, clock_ms=LEASE_MS).refusal) is Reason.HELD


def test_a_yield_lets_the_named_instance_in_and_nobody_else() -> None:
    held = granted(judged(claim(SHOWN), SHOWN))
    record = LeaseYield(id=LOG.id, e=1, to=OTHER.public, state_root=ROOT, handoff=digest_of(b"h"))
    said = sealed(record, Family.LEASE, (INSTANCE,))
    assert parse_yield(said.line()) == said
    free = yielded(held, said, port=SODIUM)
    assert isinstance(free, AgentLease)
    second = claim(SECOND, OTHER, e=2, after_e=1, after_how=ClaimBasis.YIELD)
    assert granted(judged(second, SECOND, free)).inst == OTHER.public
    assert refused(judged(second, SECOND, held).refusal) is Reason.HELD
    forged = sealed(record, Family.LEASE, (OTHER,))
    assert refused(yielded(held, forged, port=SODIUM)) is Reason.BAD_SIGNATURE
    stale = structs.replace(held, e=2)
    assert refused(yielded(stale, said, port=SODIUM)) is Reason.OLD_INCARNATION
    assert refused(yielded(None, said, port=SODIUM)) is Reason.OLD_INCARNATION


@pytest.mark.parametrize("how", [ClaimBasis.ROT, ClaimBasis.RCV])
def test_newer_keys_displace_a_live_holder(how: ClaimBasis) -> None:
    held = granted(judged(claim(SHOWN), SHOWN))
    after = OWNER.rotated(LOG, 1) if how is ClaimBasis.ROT else OWNER.back(LOG)
    op = OWNER.op(1) if how is ClaimBasis.ROT else OWNER.op(50)
    shown = certificate(after, op, inst=OTHER.public)
    said = claim(shown, OTHER, e=2, after_e=1, after_how=how)
    assert granted(judged(said, shown, held, log=after)).e == 2
    same = claim(SECOND, OTHER, e=2, after_e=1, after_how=how)
    assert refused(judged(same, SECOND, held).refusal) is Reason.HELD


def test_claims_that_do_not_fit_are_refused() -> None:
    cases = [
        (claim(SHOWN, chal="another-challenge"), SHOWN, Reason.WRONG_CHALLENGE),
        (claim(SECOND), SHOWN, Reason.WRONG_CERTIFICATE),
        (claim(SHOWN, OTHER), SHOWN, Reason.WRONG_CERTIFICATE),
        (claim(SHOWN, inst=OTHER.public), SECOND, Reason.WRONG_CERTIFICATE),
    ]
    for role in (Role.SHADOW, Role.REPLICA, Role.STANDBY):
        shadow = certificate(LOG, OWNER.op(0), role=role)
        cases.append((claim(shadow), shadow, Reason.WRONG_CERTIFICATE))
    standby = certificate(LOG, OWNER.op(0), role=Role.STANDBY)  # it may say that it waits
    cases.append((claim(standby, after_how=ClaimBasis.WAITING), standby, Reason.HELD))
    high = certificate(LOG, OWNER.op(0), e=5)
    cases.append((claim(high), high, Reason.OLD_INCARNATION))
    forged = claim(SHOWN)
    forged = replace(forged, signatures=((INSTANCE.public, bytes(64)),))
    cases.append((forged, SHOWN, Reason.BAD_SIGNATURE))
    for said, shown, reason in cases:
        found = judged(said, shown)
        assert refused(found.refusal) is reason
        assert found.lease is None


def test_two_copies_of_the_holders_key_freeze_until_the_keys_change() -> None:
    first = claim(SHOWN)
    found = judged(first, SHOWN)
    held = granted(found)
    clone = claim(SHOWN, e=2, after_e=1)  # the snapshot resumed: the same counter, other words
    fork = judged(clone, SHOWN, held, chain=found.chain, clock_ms=LEASE_MS)
    assert refused(fork.refusal) is Reason.FORK
    assert fork.chain.frozen
    assert fork.lease is not None
    assert fork.lease.frozen
    third = claim(SECOND, OTHER, e=3, after_e=1)
    stuck = judged(third, SECOND, fork.lease, clock_ms=10 * LEASE_MS)
    assert refused(stuck.refusal) is Reason.FROZEN
    record = LeaseYield(id=LOG.id, e=1, to=OTHER.public, state_root=ROOT, handoff=ROOT)
    said = sealed(record, Family.LEASE, (INSTANCE,))
    assert refused(yielded(fork.lease, said, port=SODIUM)) is Reason.FROZEN
    after = OWNER.rotated(LOG, 1)
    shown = certificate(after, OWNER.op(1), inst=OTHER.public)
    revived = claim(shown, OTHER, e=3, after_e=1, after_how=ClaimBasis.ROT)
    assert granted(judged(revived, shown, fork.lease, log=after)).e == 3


def test_a_refused_claim_still_moves_the_chain() -> None:
    held = granted(judged(claim(SHOWN), SHOWN))
    early = judged(claim(SECOND, OTHER, e=2, after_e=1), SECOND, held)
    assert refused(early.refusal) is Reason.HELD
    assert early.chain.counter == 1


def test_repeats_gaps_and_old_copies_are_no_forks() -> None:
    chain: Any = new_chain(ROOT)
    before = ROOT
    for counter in range(1, 2 * WINDOW):
        digest = digest_of(str(counter).encode())
        chain = follow_chain(chain, counter=counter, before=before, digest=digest)
        before = digest
    assert isinstance(chain, MessageChain)
    assert len(chain.seen) == WINDOW == 64
    assert MessageChain(seen=()).counter == 0
    repeat = digest_of(str(WINDOW + 5).encode())
    assert follow_chain(chain, counter=WINDOW + 5, before=ROOT, digest=repeat) is chain
    old = follow_chain(chain, counter=3, before=ROOT, digest=ROOT)
    assert refused(old) is Reason.OLD_VERSION
    ahead = follow_chain(chain, counter=1000, before=ROOT, digest=ROOT)
    assert isinstance(ahead, MessageChain)
    assert not ahead.frozen


@pytest.mark.parametrize("parse", [parse_certificate, parse_profile, parse_claim, parse_yield])
def test_a_line_of_another_kind_is_refused(parse: Any) -> None:
    with pytest.raises(BadRecord):
        parse(OWNER.inception().line())


# renewals


def renewal(**changes: Any) -> Signed[LeaseClaim]:
    first = claim(SHOWN)
    fields: dict[str, Any] = {"after_e": 1, "after_how": ClaimBasis.RENEW, "ctr": 2, "chain": first.digest, **changes}
    return claim(SHOWN, **fields)


def test_the_holder_renews_its_own_incarnation() -> None:
    first = judged(claim(SHOWN), SHOWN)
    held = granted(first)
    again = judged(renewal(), SHOWN, held, chain=first.chain, clock_ms=LEASE_MS // 2)
    assert granted(again) == structs.replace(held, until_ms=LEASE_MS // 2 + LEASE_MS)
    late = judged(renewal(), SHOWN, held, chain=first.chain, clock_ms=9 * LEASE_MS)
    assert granted(late).until_ms == 10 * LEASE_MS  # nobody else was let in meanwhile


def test_nobody_else_renews_it() -> None:
    first = judged(claim(SHOWN), SHOWN)
    held = granted(first)
    theirs = claim(SECOND, OTHER, after_e=1, after_how=ClaimBasis.RENEW)
    assert refused(judged(theirs, SECOND, held).refusal) is Reason.OLD_INCARNATION
    taken = structs.replace(held, e=2, inst=OTHER.public)
    for lease, reason in (
        (None, Reason.OLD_INCARNATION),
        (taken, Reason.OLD_INCARNATION),
        (structs.replace(held, e=2), Reason.OLD_INCARNATION),
        (structs.replace(held, frozen=True), Reason.FROZEN),
        (structs.replace(held, yielded_to=OTHER.public), Reason.HELD),
    ):
        found = judged(renewal(), SHOWN, lease, chain=first.chain)
        assert refused(found.refusal) is reason
        assert found.lease == lease
    other = judged(renewal(after_e=2), SHOWN, held, chain=first.chain)
    assert refused(other.refusal) is Reason.OLD_INCARNATION


def test_a_second_value_at_one_counter_of_a_renewal_freezes() -> None:
    first = judged(claim(SHOWN), SHOWN)
    second = judged(renewal(), SHOWN, granted(first), chain=first.chain)
    twin = renewal(state_root=digest_of(b"other state"))
    fork = judged(twin, SHOWN, granted(second), chain=second.chain)
    assert refused(fork.refusal) is Reason.FORK
    assert fork.lease is not None
    assert fork.lease.frozen


def test_who_waits_is_heard_and_gets_nothing() -> None:
    said = claim(SECOND, OTHER, e=1, after_how=ClaimBasis.WAITING)
    for held, clock_ms in ((None, 0), (granted(judged(claim(SHOWN), SHOWN)), 9 * LEASE_MS)):
        found = judged(said, SECOND, held, clock_ms=clock_ms)
        assert refused(found.refusal) is Reason.HELD
        assert found.lease is held
        assert found.chain.counter == 1
