"""A raw journal file from before a payment, copied back: refused, and the payment not repeated."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import holdfast
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import FarEnd, start
from holdfast.errors import JournalOlderCopy
from holdfast_proofs.crash import payer

FILES = ("journal.db", "journal.db-wal", "journal.db-shm")


@pytest.fixture
async def far_end() -> AsyncGenerator[FarEnd]:
    async with start("unrepeatable") as far_end:
        yield far_end


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    return folder


class Copies:
    """Raw copies of the journal's files, as `cp` makes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, bytes] = {}

    def take(self) -> None:
        for name in FILES:
            path = self._folder / name
            self._kept[name] = path.read_bytes() if path.exists() else b""

    def put_back(self, *names: str, keep: tuple[str, ...] = ()) -> None:
        """Put these back; of the others those in `keep` stay as they are, the rest goes."""
        for name in FILES:
            path = self._folder / name
            if name in names and self._kept[name]:
                path.write_bytes(self._kept[name])
                path.chmod(0o600)
            elif name not in keep:
                path.unlink(missing_ok=True)

    def digest(self) -> str:
        return hashlib.sha256((self._folder / "journal.db").read_bytes()).hexdigest()


async def take_copy_while_open(folder: Path, url: str) -> Copies:
    """A copy of file and write-ahead log, made under a program that has them open."""
    copies = Copies(folder)
    async with holdfast.open(folder / "journal.db", tasks=[payer.order], serve=False) as hf:
        await hf.submit(payer.order, request_id="order-1", url=url)
        copies.take()
    return copies


async def pay_and_be_killed(folder: Path, far_end: FarEnd, *, inside: bool) -> None:
    """Pay in another program and kill it, after the result is recorded or inside the call."""
    if inside:
        await far_end.faults(Fault(kind=FaultKind.HOLD))
    command = (sys.executable, "-m", payer.__name__, str(folder), far_end.url)
    child = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    assert child.stdout is not None
    try:
        if inside:
            await far_end.wait_inside()
        else:
            assert await child.stdout.readline() == b"paid\n"
    finally:
        child.kill()
        await child.wait()
    if inside:
        await far_end.release()


async def check_refused(folder: Path, far_end: FarEnd, copies: Copies) -> None:
    before = copies.digest()
    for _ in range(2):  # and refused again: asking changes nothing
        with pytest.raises(JournalOlderCopy, match="older copy"):
            await payer.work(folder, far_end.url)
    assert copies.digest() == before
    assert (await far_end.ledger()).count == 1


async def test_closed_file_copied_back(folder: Path, far_end: FarEnd) -> None:
    copies = Copies(folder)
    await payer.submit(folder, far_end.url)
    copies.take()
    assert await payer.work(folder, far_end.url) == "paid"

    copies.put_back("journal.db")

    await check_refused(folder, far_end, copies)


async def test_file_and_log_copied_back(folder: Path, far_end: FarEnd) -> None:
    copies = await take_copy_while_open(folder, far_end.url)
    assert await payer.work(folder, far_end.url) == "paid"

    copies.put_back("journal.db", "journal.db-wal")

    await check_refused(folder, far_end, copies)


@pytest.mark.parametrize("inside", [False, True], ids=["after the payment", "inside the payment"])
@pytest.mark.parametrize("names", [FILES[:1], FILES[:2], FILES], ids=["file", "log", "all"])
async def test_copied_back_after_a_kill(folder: Path, far_end: FarEnd, names: tuple[str, ...], inside: bool) -> None:
    """The killed program folded nothing: only its own page knows how far the journal was."""
    copies = await take_copy_while_open(folder, far_end.url)
    await pay_and_be_killed(folder, far_end, inside=inside)

    copies.put_back(*names)

    await check_refused(folder, far_end, copies)


@pytest.mark.parametrize("inside", [False, True], ids=["after the payment", "inside the payment"])
async def test_older_file_under_the_newer_log(folder: Path, far_end: FarEnd, inside: bool) -> None:
    """Found here: SQLite made a mixture of the two, the paid task was missing, and was paid again.

    The killed program's log begins after the file of its predecessor was whole; the copy is
    older than that.
    """
    copies = await take_copy_while_open(folder, far_end.url)
    await pay_and_be_killed(folder, far_end, inside=inside)

    copies.put_back("journal.db", keep=("journal.db-wal", "journal.db-shm"))

    await check_refused(folder, far_end, copies)


async def test_the_newer_file_put_back_again_works(folder: Path, far_end: FarEnd) -> None:
    """A refusal is no damage: with the right file everything goes on."""
    older, newer = Copies(folder), Copies(folder)
    await payer.submit(folder, far_end.url)
    older.take()
    assert await payer.work(folder, far_end.url) == "paid"
    newer.take()
    older.put_back("journal.db")
    with pytest.raises(JournalOlderCopy):
        await payer.work(folder, far_end.url)

    newer.put_back("journal.db")

    assert await payer.work(folder, far_end.url) == "paid"
    assert (await far_end.ledger()).count == 1
