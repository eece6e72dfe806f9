"""Lines of a log that come twice count once and cost nothing; a key stands in one class of a record alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import BadRecord
from holdfast.identity.log import drafts
from holdfast.identity.log import log as log_module
from holdfast.identity.log.log import replay
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.records import Keys, Record
from holdfast.identity.records.secret_bytes import SEED_BYTES, KeyPair, SecretBytes
from holdfast.identity.records.signed import Signed
from holdfast.identity.witness.witness import copy_of
from holdfast_proofs.support.agents import World

PORT = Sodium()


def key(number: int) -> KeyPair:
    return KeyPair(SecretBytes(bytes([number]) * SEED_BYTES))


def test_equal_lines_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    world = World(tmp_path)
    world.make()
    log = world.log()
    copy, read = copy_of(log), list[bytes]()
    parse = log_module.parse_record

    def counted(line: bytes) -> Signed[Record]:
        read.append(line)
        return parse(line)

    monkeypatch.setattr(log_module, "parse_record", counted)
    records = list(enumerate(copy.records * 100_000, 1))
    assert replay(records, list(enumerate(copy.receipts * 3, 1)), port=PORT) == log
    assert len(read) == len(copy.records)


@pytest.mark.parametrize("shared", ["op", "nxt", "rec"])
def test_a_witness_has_no_other_part_in_the_record(shared: str) -> None:
    """op: it would vouch for itself."""
    op, nxt, rec, wit = (key(number) for number in range(1, 5))
    chosen = {"op": op, "nxt": nxt, "rec": rec}[shared]
    for witness, good in ((wit, True), (chosen, False)):
        fields = {"nxt": drafts.committed((nxt.public,)), "rec": drafts.committed((rec.public,))}
        wits = Keys((witness.public,), 1)
        if good:
            drafts.inception(op=(op,), wit=wits, nonce="a" * 26, **fields)
        else:
            with pytest.raises(BadRecord, match="two purposes"):
                drafts.inception(op=(op,), wit=wits, nonce="a" * 26, **fields)
