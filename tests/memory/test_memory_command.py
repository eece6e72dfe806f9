"""`holdfast memory`, with and without a journal, beside a worker, and what the edits lose."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from holdfast.app.binder import open_journal
from holdfast.app.memory import memory_of
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import file_at
from holdfast.journal.contract import Remark, RemarkTo
from holdfast.layout.agent_home import MemoryPlace, load_home
from holdfast_proofs.memory_edits.__main__ import pair
from holdfast_proofs.memory_edits.editor import WAYS
from holdfast_proofs.support.command_line import Commands, Done

EDITS = 60
APP = """
import holdfast

@holdfast.task
async def noting(run: holdfast.Run, text: str) -> None:
    await run.note(text, to="MEMORY")

tasks = [noting]
"""


class Memory:
    def __init__(self, home: Path) -> None:
        self.commands = Commands(home, main)
        self.home = home

    def __call__(self, *words: str, stdin: str = "", code: int = 0) -> Done:
        """Inside this process: the same answer, sooner."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch("sys.stdin", io.StringIO(stdin)):
            found = main(["memory", *words, "--home", str(self.home)])
        assert found == code, err.getvalue()
        return Done(found, out.getvalue(), err.getvalue())


@pytest.fixture
def memory(home: Path) -> Memory:
    return Memory(home)


def test_a_folder_that_is_gone_can_be_forgotten(memory: Memory, home: Path) -> None:
    async def mark(folder: str) -> None:
        journal, _ = await open_journal(file_at(home / "journal.db"))
        await journal.close_remarks(1, folder=folder, name="old-host:/agents/ada")
        await journal.close()

    async def begin() -> None:
        await (await open_journal(file_at(home / "journal.db")))[0].close()

    asyncio.run(begin())
    assert "no line was written" in memory("folders").err
    memory("add", "tea")
    (own,) = memory("folders", "--json").json["folders"]
    assert (own["where"].endswith(f":{home}"), own["waiting"]) == (True, 0)
    asyncio.run(mark("feed" * 8))
    assert "old-host:/agents/ada" in memory("folders").out
    assert "no folder has" in memory("folders", "--forget", "xyz", code=2).err
    found = memory("folders", "--forget", "feed", "--json").json
    assert (found["forgotten"], [one["id"] for one in found["folders"]]) == ("old-host:/agents/ada", [own["id"]])


def test_without_a_journal_a_line_goes_straight_into_the_file(memory: Memory, home: Path) -> None:
    done = memory("add", "moved the meeting", "--json").json
    assert (done["journal"], done["written"]) == (False, True)
    text = (home / done["file"]).read_text()
    assert f"hf {done['id']} " in text
    assert text.rstrip().endswith(" user -->")
    assert not (home / "journal.db").exists()
    memory("add", "-", "--to", "MEMORY", "--origin", "tool x", stdin="never before nine\n")
    assert "never before nine" in memory("show").out
    found = memory("search", "meeting", "nine", "--json").json["lines"]
    assert {one["origin"] for one in found} == {"user", "tool x"}


def make_journal(home: Path) -> None:
    async def make() -> None:
        journal, _ = await open_journal(file_at(home / "journal.db"))
        await journal.close()

    asyncio.run(make())


def test_a_file_that_cannot_be_read_is_named_by_a_search(memory: Memory, home: Path) -> None:
    memory("add", "the landlord answers on Mondays")
    day = next((home / "memory").iterdir())
    (home / "MEMORY.md").write_text("- the flat is old\n")
    (home / "MEMORY.md").rename(home / "elsewhere.md")
    (home / "MEMORY.md").symlink_to("elsewhere.md")
    done = memory("search", "flat")
    assert "no line matches in the files that could be read" in done.out + done.err
    assert "NOT SEARCHED: MEMORY.md: " in done.err
    assert "symbolic link" in done.err
    assert [one["file"] for one in memory("search", "landlord", "--json").json["unread"]] == ["MEMORY.md"]
    with open(day, "ab") as file:
        file.truncate(9 << 20)
    found = memory("search", "landlord", "--json").json
    assert {one["file"] for one in found["unread"]} == {"MEMORY.md", f"memory/{day.name}"}


async def test_the_tool_tells_a_model_what_was_not_searched(home: Path) -> None:
    (home / "MEMORY.md").symlink_to("elsewhere.md")
    journal, _ = await open_journal(file_at(home / "journal.db"))
    try:
        found = await memory_of(load_home(home), journal).recall("flat", limit=5)
    finally:
        await journal.close()
    assert found.lines == ()
    assert [one.file for one in found.unread] == ["MEMORY.md"]


def test_what_cannot_be_written_says_why_and_is_found_all_the_same(memory: Memory, home: Path) -> None:
    make_journal(home)
    memory("add", "the first line", "--to", "MEMORY")
    (home / ".holdfast").chmod(0o755)
    done = memory("add", "the second line", "--to", "MEMORY")
    assert "not yet in MEMORY.md: " in done.err
    assert "(mode 0755)" in done.err
    assert "other users can read or change " in done.err
    assert f"chmod 700 {home / '.holdfast'}" in done.err
    assert "MEMORY.md:waits" in memory("search", "second").out
    again = memory("add", "the second line", "--to", "MEMORY", "--json").json
    assert not again["written"]
    assert "mode 0755" in again["why"]
    assert "chmod 700" in again["hint"]
    (home / ".holdfast").chmod(0o700)
    memory("add", "the third line", "--to", "MEMORY")
    found = memory("search", "second", "--json").json["lines"]
    assert [one["line"] > 0 for one in found] == [True, True]  # each once, in its file


def test_a_file_that_is_gone_is_told_from_one_that_never_was(memory: Memory, home: Path) -> None:
    make_journal(home)
    assert "there is no MEMORY.md yet" in memory("show").err
    assert memory("show", "--json").json["gone"]["known"] == 0
    memory("add", "the first line", "--to", "MEMORY")
    assert memory("show", "--json").json["gone"] is None
    (home / "MEMORY.md").unlink()
    told = memory("show").err
    assert "MEMORY.md is missing; Holdfast still has the 3 lines" in told
    assert "`holdfast memory add`" in told
    memory("add", "the second line", "--to", "MEMORY")
    assert "the first line" in memory("show").out
    (home / "MEMORY.md").unlink()
    shutil.rmtree(home / ".holdfast")
    told = memory("show").err
    assert "Holdfast cannot write 2 of its lines again" in told
    assert "holdfast recover --file MEMORY.md" in told


def test_beside_a_worker_a_line_goes_through_the_journal(memory: Memory, home: Path) -> None:
    (home / "app.py").write_text(APP)
    worker = memory.commands.worker()
    try:
        worker.wait_event("serving")
        done = memory("add", "said by a person", "--to", "MEMORY", "--json").json
        assert (done["journal"], done["written"]) == (True, True)
        memory.commands("submit", "app.py:tasks", '{"text": "said by a task"}', "--task", "noting")
        assert worker.stop() == 0  # what was noted is in the files when it ends
    finally:
        worker.close()
    text = (home / "MEMORY.md").read_text()
    assert text.count("said by a person") == text.count("said by a task") == 1


def test_what_is_printed(memory: Memory, home: Path) -> None:
    place = MemoryPlace(folder=home)
    place.memory_file.write_text("- red \x1b[31m alert\n- half a li")
    shown = memory("show")
    assert "\x1b" not in shown.out
    assert "is incomplete" in shown.err
    printed = memory("show", "--json").json
    assert (printed["torn"], [one["line"] for one in printed["lines"]]) == (True, [1, 2])
    assert "[From the runtime" in memory("show", "--start").out
    assert memory("show", "--start", "--json").json["tokens"] == 6_000
    assert "MEMORY.md:1" in memory("search", "alert").out
    assert "no line matches" in memory("search", "nowhere").err
    assert "there is no memory/2026-11-15.md yet" in memory("show", "2026-11-15").err


def test_every_field_is_documented(memory: Memory) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()
    parts = re.split(r"^## `(.+)`$", page, flags=re.MULTILINE)
    known = {name: set(re.findall(r"`(\w+)`", text)) for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    for words in (("add", "a line"), ("search", "line"), ("show",), ("show", "--start")):
        printed = memory(*words, "--json").json
        found = set(printed).union(*(one for one in printed.get("lines", [])))
        assert found <= known[f"holdfast memory {words[0]}"] | {"lines"}, words


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("add", ""), 2),
        (("add", "x" * 4_001), 2),
        (("show", "yesterday"), 2),
        (("search", "x", "--since", "2026-13-01"), 2),
        (("search", "x", "--limit", "0"), 2),
    ],
)
def test_what_makes_no_sense_is_refused(memory: Memory, words: tuple[str, ...], code: int) -> None:
    memory(*words, code=code)


def test_a_folder_without_an_agent_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    Memory(tmp_path)("show", code=3)


@pytest.mark.parametrize("how", list(WAYS))
def test_no_edit_is_lost(how: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    outcome = asyncio.run(pair(tmp_path, how, edits=EDITS, seed=7))
    assert outcome.well, outcome
    assert outcome.agent_edits == outcome.editor_edits == EDITS // 2


def test_doctor_says_what_waits_for_the_files(memory: Memory, home: Path) -> None:
    async def add() -> None:
        journal, _ = await open_journal(file_at(home / "journal.db"), clock=EarlyClock())
        remark = Remark(remark_id="a", to=RemarkTo.DAY, text="waits", origin="user")
        await journal.add_remarks([remark])
        await journal.close()

    asyncio.run(add())
    found = memory.commands.look("doctor", "--deep", "--json", code=1).json
    (line,) = [one for one in found["findings"] if one["check"] == "memory"]
    assert (line["level"], line["text"][:12]) == ("warning", "1 line waits")
    memory("add", "another")
    found = memory.commands.look("doctor", "--deep", "--json").json
    (line,) = [one for one in found["findings"] if one["check"] == "memory"]
    assert line["level"] == "ok"


class EarlyClock(SystemClock):
    def wall_ms(self) -> int:
        return super().wall_ms() - 120_000
