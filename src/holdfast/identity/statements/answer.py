"""Answers: the operational keys say that the agent is there, to anyone who asked just now.

Someone who wants to know whether an id still answers draws a challenge; the answer repeats it
under the agent's signature. It proves that a holder of the keys that the log names was reached
after the challenge was drawn, and nothing more: not over which line it came, nor that the one who
passed it on is the agent. Where that matters the asker gives its own name, and the answer says
for whom it was made.
"""

from __future__ import annotations

from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.fields import of, record, text, whole
from holdfast.identity.records.records import AtPosition, Reason, Refusal
from holdfast.identity.records.signed import Family, Signed, read_line, sealed
from holdfast.identity.statements.certificate import SKEW_S, find_not_signed_by, find_signing_entry

CHALLENGE_FORM = r"[A-Za-z0-9_-]{16,86}"
ASKER_FORM = r"[\x21-\x7e]{1,200}"
LIFE_S = 300  # an answer says something about now


@record
class ChallengeAnswer(AtPosition):
    KIND = "ans"
    chal: str = of(text(form=CHALLENGE_FORM))
    at: int = of(whole())  # unix seconds
    to: str = of(text(form=ASKER_FORM), default="")  # who asked; empty where the asker gave no name


def parse_answer(raw: bytes) -> Signed[ChallengeAnswer]:
    """The answer of a line; BadRecord where it is none. Its signatures are not checked yet."""
    return read_line(raw, ChallengeAnswer, "an answer")


def sign_answer(answer: ChallengeAnswer, *signers: Signer) -> Signed[ChallengeAnswer]:
    """Signed, and read back as the asker will read it; BadRecord where it could not."""
    return parse_answer(sealed(answer, Family.ANSWER, signers).line())


def find_fault_in_answer(
    signed: Signed[ChallengeAnswer], log: KeyLog, *, challenge: str, now: int, port: Signatures, asker: str = ""
) -> Refusal | None:
    """Why this is no answer of the agent to the challenge; None where it is one."""
    answer = signed.record
    if (answer.chal, answer.to) != (challenge, asker):
        return Refusal(Reason.WRONG_CHALLENGE, "answers another challenge, or another asker")
    entry = find_signing_entry(log, answer.id, answer.position, None)
    if isinstance(entry, Refusal):
        return entry
    if answer.at > now + SKEW_S:
        return Refusal(Reason.TOO_EARLY, "answered in the future")
    if now - answer.at > LIFE_S:
        return Refusal(Reason.EXPIRED, f"older than {LIFE_S} s")
    return find_not_signed_by(signed, Family.ANSWER, entry, port)
