"""The chain of heads: where it is kept, what is behind, what forks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from holdfast.backup.chain.chain import behind, joined, valid_heads
from holdfast.backup.chain.heads import HeadFile, parse_lines
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head, JournalMark, follows
from holdfast_proofs.backup_lab import AT, SODIUM, Owner

OWNER = Owner()


def chain_of(count: int, *, e: int = 1, after: Signed[Head] | None = None) -> list[Signed[Head]]:
    heads: list[Signed[Head]] = []
    for _ in range(count):
        seq = 1 if after is None else after.record.seq + 1
        head = OWNER.seal_head(
            Head(
                id=OWNER.id,
                g=0,
                s=0,
                e=e,
                seq=seq,
                at=AT + 60 * seq,
                manifest=digest_of(b"%d %d" % (e, seq)),
                archive=f"ada-{e}-{seq}-x",
                bytes=1,
                files=1,
                journal=JournalMark(id="j", sequence=10 * seq, incarnation=e),
                prev=None if after is None else after.digest,
            )
        )
        heads.append(head)
        after = head
    return heads


def test_the_newest_of_all_sources_counts_and_each_is_measured_by_it() -> None:
    heads = chain_of(5)
    found = joined([heads[:2], heads, heads[3:4]])
    assert found.newest == heads[4]
    assert (found.forks, found.gaps) == ((), ())
    lag = behind(heads[4].record, heads[1].record)
    assert lag is not None
    assert (lag.generations, lag.steps, lag.seconds) == (3, 30, 180)
    assert behind(heads[4].record, heads[4].record) is None
    assert behind(heads[4].record, None) is None


def test_another_journal_has_no_distance_in_steps() -> None:
    heads = chain_of(2)
    mark = JournalMark(id="other", sequence=1, incarnation=1)
    lag = behind(heads[1].record, replace(heads[0].record, journal=mark))
    assert lag is not None
    assert lag.steps is None


def test_forks_and_gaps_are_named() -> None:
    heads = chain_of(4)
    same = chain_of(1, after=heads[0])[0]
    other = OWNER.seal_head(replace(same.record, archive="ada-1-2-y"))
    restored = chain_of(2, e=2, after=heads[1])
    found = joined([[heads[0], heads[1], heads[3]], [other, *restored]])
    assert [(one.seq, one.after_restore) for one in found.forks] == [(2, False), (4, True)]
    assert found.gaps == (3,)
    assert found.newest == restored[-1]
    assert all(follows(one, before) for before, one in pairwise(heads))
    assert not follows(heads[3], heads[1])


def test_an_incarnation_outranks_a_number() -> None:
    """A restored agent goes on from an older head; what the lost one did later is older."""
    lost = chain_of(9)
    live = chain_of(1, e=2, after=lost[3])
    assert joined([lost, live]).newest == live[0]


def test_heads_of_others_do_not_count() -> None:
    mine, theirs = chain_of(2), Owner(name="eve")
    forged = theirs.seal_head(replace(mine[1].record, archive="x"))
    good, faults = valid_heads([*mine, forged, *mine], OWNER.log(), port=SODIUM)
    assert good == mine
    assert len(faults) == 1


def test_a_file_of_heads_is_appended_once_and_survives_a_torn_line(tmp_path: Path) -> None:
    heads = chain_of(3)
    file = HeadFile(tmp_path / "heads.jsonl")
    assert file.read().heads == ()
    file.append(heads[0])
    file.append(heads[0])
    assert file.read().heads == (heads[0],)
    with open(file.path, "ab") as raw:
        raw.write(heads[1].line()[:100])
    assert file.read().heads == (heads[0],)
    assert file.read().findings == ()
    file.append_missing(heads)
    assert file.read().heads == tuple(heads)
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_line_is_a_finding_and_findings_are_bounded() -> None:
    heads = chain_of(2)
    raw = heads[0].line() + b"\n" + b"garbage\n" * 100 + heads[1].line() + b"\n"
    held = parse_lines(raw, where="x")
    assert held.heads == tuple(heads)
    assert len(held.findings) == 21
    assert "80 more" in held.findings[-1]
