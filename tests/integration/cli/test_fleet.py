"""`holdfast worker` for several agents whose journals are files."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import holdfast
from holdfast.errors import EXIT_USAGE
from holdfast.layout.journal_location import journal_in
from holdfast_proofs.support.command_line import Worker, environment

SAMPLE = Path(__file__).with_name("sample_app.py")


def make_home(folder: Path, settings: str) -> Path:
    folder.mkdir(mode=0o700)
    (folder / "holdfast.toml").write_text(settings)
    return folder


def start(folder: Path, *homes: Path) -> Worker:
    shutil.copy(SAMPLE, folder / "app.py")
    given = [word for home in homes for word in ("--home", str(home))]
    return Worker(folder, ("worker", "app.py:tasks", *given), environment(folder))


async def test_agents_with_journals_in_files_share_a_worker(tmp_path: Path) -> None:
    """One has wrong settings: it is left out. The server of another does not answer: it is tried again and again. The
    others work, and all stop when they are told."""
    ada, ben = make_home(tmp_path / "ada", 'agent = "ada"\n'), make_home(tmp_path / "ben", 'agent = "ben"\n')
    odd = make_home(tmp_path / "odd", "agnet = 1\n")
    far = make_home(tmp_path / "far", f'[journal]\nurl = "postgresql://u@/d?host={tmp_path}"\n')
    worker = start(tmp_path, ada, ben, odd, far)
    try:
        left_out = worker.wait_event("agent-left-out")
        assert (left_out["agent"], left_out["code"]) == (str(odd), "bad-settings")
        assert worker.wait_event("fleet")["serving"] == 2
        failed = worker.wait_event("agent-failed")
        assert (failed["agent"], failed["code"]) == (str(far), "journal-busy")
        for home in (ada, ben):
            async with holdfast.open(journal_in(home), serve=False) as hf, asyncio.timeout(60):
                task = await hf.submit("hello", who=home.name, request_id="the same")
                assert (await task.result())["sent"] == {"to": home.name}
        assert len(set((tmp_path / "sent").read_text().split())) == 2
        assert worker.stop() == 0
        assert all("hello" in (home / "handoff.md").read_text() for home in (ada, ben))
    finally:
        worker.close()


def test_a_worker_that_can_serve_none_of_its_agents_ends(tmp_path: Path) -> None:
    worker = start(tmp_path, make_home(tmp_path / "odd", "agnet = 1\n"), make_home(tmp_path / "new", "agent = 2\n"))
    try:
        assert worker.wait_end() == EXIT_USAGE
        assert "agnet is not a setting" in "".join(worker.said)
    finally:
        worker.close()
