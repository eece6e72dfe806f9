"""The checker as a command: a journal on disk against a far end that counts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from holdfast.downstream.process import start_blocking
from holdfast.journal.records import RecordKind
from holdfast_proofs.crash.payer import work
from holdfast_proofs.history.__main__ import main, read_stories


def test_a_journal_and_its_books(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    journal = str(folder / "journal.db")
    with start_blocking("unrepeatable") as far_end:
        url = f"http://127.0.0.1:{far_end.port}"
        assert asyncio.run(work(folder, url)) == "paid"
        assert main([journal, "--books", url, "--json"]) == 0
        page = far_end.ledger()
    report = json.loads(capsys.readouterr().out)
    assert (report["green"], report["tasks"], report["effects"]) == (True, 1, 1)

    again = replace(page.effects[0], n=2)
    books = tmp_path / "books.json"
    books.write_bytes(msgspec.json.encode(replace(page, effects=(*page.effects, again))))
    assert main([journal, "--books", str(books)]) == 1
    assert "I1: step 1 took effect 2 times" in capsys.readouterr().out

    log = b"\n".join(msgspec.json.encode(one) for one in (*page.effects, again)) + b"\n"
    books.write_bytes(log)
    assert main([journal, "--books", str(books), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["effects"] == 2

    books.write_bytes(msgspec.json.encode(replace(page, effects=())))
    assert main([journal, "--books", str(books), "--order"]) == 1
    assert "I2: step 1 is recorded as succeeded" in capsys.readouterr().out


def test_what_a_worker_says_of_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    journal = str(folder / "journal.db")
    with start_blocking("unrepeatable") as far_end:
        asyncio.run(work(folder, f"http://127.0.0.1:{far_end.port}"))
    stories = asyncio.run(read_stories(Path(journal), (), ()))
    (claim,) = [one.epoch for one in stories[0].records if one.kind is RecordKind.CLAIMED]

    def log(session: str, epoch: int) -> str:
        path = tmp_path / f"{session}.log"
        ended = {"event": "run-ended", "task_id": stories[0].task_id, "epoch": epoch}
        begun = {"event": "session-begun", "session": session}
        path.write_text(f"{json.dumps(begun)}\n{json.dumps(ended)}\n")
        return str(path)

    assert main([journal, "--logs", log("a", claim)]) == 0
    assert main([journal, "--logs", log("a", claim), log("b", claim)]) == 1
    assert "has owners ['a', 'b']" in capsys.readouterr().out
    assert main([journal, "--logs", log("a", claim + 1)]) == 1


def test_what_is_no_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing.db")]) == 2
    assert "there is no journal" in capsys.readouterr().err
