"""Signed readings of sheets: `paper-read.jsonl` in the agent's folder, one line each time that a sheet was read back.

The register in identity.json says when a sheet was read back, and anyone who can write the file can write a date. So a
reading counts as proof only if the agent's own key has signed it: a line is an answer of the agent to a challenge that
names sheet and date, made right after the words on the paper were found to fit. It counts as long as the key log has
the position of the keys that signed, so also after a recovery. A copy of another agent's register proves nothing here.
"""

from __future__ import annotations

import contextlib
import hashlib

import msgspec

from holdfast.errors import BadRecord
from holdfast.host.line_file import append_line, read_lines
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.sheets import PrintedSheet, SheetRegister
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.signed import Family, Signed
from holdfast.identity.statements.certificate import find_not_signed_by
from holdfast.identity.statements.statements import ChallengeAnswer, parse_answer
from holdfast.layout.agent_home import AgentHome

ASKER = "holdfast-paper"
FILE_BYTES_MAX = 4 << 20


def challenge_of(sheet: PrintedSheet, *, date: str) -> str:
    """What the agent signs: that this sheet was read back on this day."""
    return hashlib.sha256(f"{sheet.number}/{sheet.generation}/{sheet.document}/{date}".encode()).hexdigest()


def add_reading(home: AgentHome, answer: Signed[ChallengeAnswer]) -> None:
    append_line(home.readings_file, answer.line(), bytes_max=FILE_BYTES_MAX)


def believed(home: AgentHome, log: KeyLog, register: SheetRegister, *, port: Signatures) -> SheetRegister:
    """The register with those dates of reading back alone that this agent has signed."""
    signed = _signed(home, log, port) if any(one.verified for one in register.sheets) else frozenset[str]()
    kept = (
        one if challenge_of(one, date=one.verified) in signed else msgspec.structs.replace(one, verified="")
        for one in register.sheets
    )
    return msgspec.structs.replace(register, sheets=tuple(kept))


def _signed(home: AgentHome, log: KeyLog, port: Signatures) -> frozenset[str]:
    found = set[str]()
    for line in read_lines(home.readings_file, bytes_max=FILE_BYTES_MAX):
        with contextlib.suppress(BadRecord):
            answer = parse_answer(line)
            entry = log.find(answer.record.position)
            ours = answer.record.id == log.id and answer.record.to == ASKER
            if ours and entry is not None and find_not_signed_by(answer, Family.ANSWER, entry, port) is None:
                found.add(answer.record.chal)
    return frozenset(found)
