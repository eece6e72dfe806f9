"""The acts of the operational key: each signs its own record, and only while the log lets it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import SODIUM, Owner, key, refused, take
from quick_agent import Agent, make_agent

from holdfast.errors import BadInput, BadRecord, KeysReplaced, NotNow, VaultDamaged
from holdfast.identity.records.encodings import digest_of, key_text
from holdfast.identity.records.signed import Family, Reason, Signed, sealed
from holdfast.identity.speaker.open_speaker import VaultSpeaker
from holdfast.identity.statements.certificate import ObserverState, Role, find_fault_in_certificate
from holdfast.identity.statements.statements import (
    ChallengeAnswer,
    find_fault_in_answer,
    find_fault_in_head,
    judge_profile,
    parse_answer,
)
from holdfast.testing.clocks import ManualClock

CLOCK = ManualClock()
NOW = CLOCK.wall_ms() // 1000
CHALLENGE = "challenge-challenge"
HOST = digest_of(b"host")


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return make_agent(tmp_path)


def certify(speaker: VaultSpeaker, **changes: Any) -> None:  # Any: also what is no such value
    wish: dict[str, Any] = {
        "inst": key("i").public,
        "role": Role.PRIMARY,
        "incarnation": 3,
        "host": HOST,
        "life_s": 900,
    }
    speaker.certify(**{**wish, **changes})


def test_each_act_gives_a_record_that_strangers_take(agent: Agent) -> None:
    speaker = agent.speaker(CLOCK)
    log = speaker.log()
    assert speaker.id == log.id
    shown = speaker.certify(inst=key("i").public, role=Role.PRIMARY, incarnation=3, host=HOST, life_s=900)
    moment = ObserverState(now=NOW, head_seen_at=NOW, incarnation=3)
    assert find_fault_in_certificate(shown, log, moment, port=SODIUM) is None
    said = speaker.answer(CHALLENGE, asker="relay.example")
    assert find_fault_in_answer(said, log, challenge=CHALLENGE, now=NOW, port=SODIUM, asker="relay.example") is None
    told = speaker.profile(ver=1, life_s=60, policy=(("b", 1), ("a", True)))
    assert judge_profile(told, None, log, now=NOW, port=SODIUM) is told
    head = speaker.seal_head(incarnation=1, seq=1, manifest=digest_of(b"m"), archive="a-1", size_bytes=5, files=1)
    assert find_fault_in_head(head, log, port=SODIUM) is None


def test_values_that_no_record_may_hold_are_refused(agent: Agent) -> None:
    speaker = agent.speaker(CLOCK)
    keys = speaker.log().operational
    assert keys is not None
    low_order = key_text(bytes(32))
    for changes in (
        {"life_s": 0},
        {"life_s": 3601},
        {"inst": keys.members[0]},
        {"inst": "z6Mk"},
        {"inst": low_order},
        {"incarnation": -1},
        {"incarnation": 2**60},
        {"host": "x"},
    ):
        with pytest.raises(BadInput):
            certify(speaker, **changes)
    for challenge in ("short", "x" * 87, "sixteen characters!", ""):
        with pytest.raises(BadInput):
            speaker.answer(challenge)
    with pytest.raises(BadInput):
        speaker.answer(CHALLENGE, asker="two words")
    with pytest.raises(BadInput):
        speaker.profile(ver=1, life_s=10**9)
    with pytest.raises(BadInput):
        speaker.profile(ver=1, life_s=60, handles=("no relay",))
    with pytest.raises(BadInput):
        speaker.seal_head(incarnation=1, seq=2, manifest=HOST, archive="a", size_bytes=5, files=1)


def test_the_key_that_the_newest_head_names_signs_from_then_on(agent: Agent) -> None:
    speaker = agent.speaker(CLOCK)
    before = speaker.answer(CHALLENGE)
    agent.rotate()
    after = speaker.answer(CHALLENGE)
    assert after.signatures[0][0] != before.signatures[0][0]
    assert after.record.position == (0, 1)
    log = speaker.log()
    fault = find_fault_in_answer(before, log, challenge=CHALLENGE, now=NOW, port=SODIUM)
    assert refused(fault) is Reason.OLD_KEYS
    assert find_fault_in_answer(after, log, challenge=CHALLENGE, now=NOW, port=SODIUM) is None


def test_keys_that_were_replaced_elsewhere_sign_nothing(agent: Agent) -> None:
    """The log names a key that this vault has never seen: the vault is an old one."""
    owner = Owner()
    speaker = VaultSpeaker(agent.vault(), read_log=owner.begun, clock=CLOCK)
    with pytest.raises(KeysReplaced):
        speaker.answer(CHALLENGE)
    (agent.vault_folder / "op.age").write_bytes(b"torn")
    with pytest.raises(VaultDamaged):
        agent.speaker(CLOCK).answer(CHALLENGE)


def test_nobody_speaks_for_a_locked_identity(agent: Agent) -> None:
    owner = Owner()
    locked = take(owner.begun(), owner.recovery(owner.begun()))
    speaker = VaultSpeaker(agent.vault(), read_log=lambda: locked, clock=CLOCK)
    with pytest.raises(NotNow):
        certify(speaker)


# answers


def answered(**changes: object) -> Signed[ChallengeAnswer]:
    owner = Owner()
    record = ChallengeAnswer(id=owner.begun().id, g=0, s=0, chal=CHALLENGE, at=NOW)
    return parse_answer(sealed(replace(record, **changes), Family.ANSWER, (owner.op(0),)).line())


def fault(said: Signed[ChallengeAnswer], *, now: int = NOW, asker: str = "") -> Reason | None:
    found = find_fault_in_answer(said, Owner().begun(), challenge=CHALLENGE, now=now, port=SODIUM, asker=asker)
    return None if found is None else found.reason


def test_an_answer_counts_for_its_challenge_and_for_now() -> None:
    said = answered()
    assert parse_answer(said.line()) == said
    assert fault(said) is None
    assert fault(said, now=NOW + 300) is None
    assert fault(said, now=NOW + 301) is Reason.EXPIRED
    assert fault(said, now=NOW - 61) is Reason.TOO_EARLY
    assert fault(said, asker="me") is Reason.WRONG_CHALLENGE
    assert fault(answered(to="me"), asker="me") is None
    assert fault(answered(to="me"), asker="you") is Reason.WRONG_CHALLENGE
    assert fault(answered(chal="another-challenge")) is Reason.WRONG_CHALLENGE
    assert fault(answered(s=1)) is Reason.OLD_KEYS
    assert fault(answered(id=Owner(name="x").begun().id)) is Reason.OTHER_ID
    assert fault(replace(said, signatures=())) is Reason.TOO_FEW_SIGNATURES
    other = sealed(said.record, Family.CERT, (Owner().op(0),))
    assert fault(other) is Reason.BAD_SIGNATURE
    with pytest.raises(BadRecord):
        parse_answer(Owner().inception().line())
