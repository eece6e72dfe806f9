"""An adopted agent is lost with its machine, and comes back from words and one place."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.app.handoff import read_answer
from holdfast.backup.archive.manifest import SnapshotNote
from holdfast.backup.restore.restore_home import RestoreReport
from holdfast.cli.recover.show import show_loss
from holdfast.demo.machine import AGENT, Machine, back_up, bring_back, give_identity, lose
from holdfast.identity.files.public_file import read_identity
from holdfast.layout.agent_home import home_folder, load_home
from holdfast.recovery.adopt import prepare, survey_folder

sys.path.insert(0, str(Path(__file__).parent))

from foreign_folders import openclaw, snapshot


@holdfast.task
async def wonder(run: holdfast.Run) -> None:
    await run.approve("is anybody there?")


@pytest.mark.parametrize("durable", [False, True], ids=["no journal", "with a journal"])
async def test_words_and_one_place_bring_an_adopted_agent_back(tmp_path: Path, durable: bool) -> None:
    folder, place, old = tmp_path / "clawd", tmp_path / "place", Machine(tmp_path / "old")
    folder.mkdir(mode=0o755)
    openclaw(folder)
    before = snapshot(folder)
    home = prepare(survey_folder(folder, name=AGENT))
    if durable:
        async with holdfast.open(home.journal, tasks=[wonder], serve=False) as hf:
            await hf.submit(wonder)
    home, words = await give_identity(home.folder, old)
    id_ = read_identity(home.identity_file).id
    report = await back_up(home, [place])
    assert all(one.verified for one in report.places), report
    lose(folder, old.folder)

    done = await bring_back(folder, words, place, Machine(tmp_path / "new"))

    assert done.home.folder == home_folder(str(folder)) == folder / ".holdfast"
    assert read_identity(done.home.identity_file).id == id_
    after = snapshot(folder)
    secret = {".env", "agents/main/agent/auth-profiles.json"}
    for path, (mode, _, _, what) in before.items():
        if path in secret:
            assert path not in after
        elif path.endswith(".sqlite"):
            assert stat.S_ISREG(after[path][0])
        else:
            assert (after[path][0], after[path][3]) == (mode, what), path
    answer = await read_answer(load_home(done.home.folder))
    assert answer.handoff.agent_id == id_
    assert answer.source == ("journal" if durable else "files")
    assert bool([line for line in answer.handoff.where if "wonder" in line]) is durable


async def test_what_was_newest_is_newest_after_a_recovery_and_what_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times and modes come back; a link that points outside and a secret are named, not lost."""
    folder, place, old = tmp_path / "clawd", tmp_path / "place", Machine(tmp_path / "old")
    folder.mkdir()
    openclaw(folder)
    for name, days_ago in (("zzz", 40), ("aaa", 1), ("a1", 90)):
        path = folder / "sessions" / f"{name}.jsonl"
        path.write_text("{}\n")
        at = time.time() - days_ago * 86_400
        os.utime(path, (at, at))
    os.utime(folder / "skills", (1_780_000_000, 1_780_000_000))
    (folder / "skills").chmod(0o755)
    (folder / "outlink").symlink_to("/etc/hostname")
    folder.chmod(0o2755)
    home, words = await give_identity(prepare(survey_folder(folder, name=AGENT)).folder, old)
    said = (await read_answer(home)).handoff
    before = snapshot(folder)
    report = await back_up(home, [place])
    assert all(one.verified for one in report.places), report
    lose(folder, old.folder)

    done = await bring_back(folder, words, place, Machine(tmp_path / "new"))

    after = snapshot(folder)
    assert "outlink" not in after
    for path in set(after) & set(before):
        if not path.startswith(".holdfast"):
            assert after[path][0] == before[path][0], path
            assert after[path][2] // 1000 == before[path][2] // 1000, path
    now = (await read_answer(load_home(done.home.folder))).handoff
    assert "aaa.jsonl" in said.where[0]
    assert (now.where, now.changed) == (said.where, said.changed)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE(done.home.folder.stat().st_mode) == 0o700

    restored = done.restored
    assert restored is not None
    assert (restored.links_left, restored.links_left_count) == (("outlink",), 1)
    assert {".env", "agents/main/agent/auth-profiles.json"} <= {one.path for one in restored.notes}
    show_loss(restored, said=True)
    told = capsys.readouterr().err
    assert "link not restored: outlink points outside" in told
    assert "note of the snapshot: .env: left out: an unencrypted secret, by its name" in told
    assert "this host's own keys" not in told


def test_of_a_long_list_the_first_are_named_and_the_rest_counted(capsys: pytest.CaptureFixture[str]) -> None:
    left = RestoreReport(
        target="x",
        done=True,
        seq=1,
        archive="x",
        place="p",
        at=1,
        time="1970-01-01T00:00:01.000+00:00",
        incarnation=1,
        journal_sequence=None,
        files=0,
        bytes=0,
        newest_known=1,
        behind=None,
        links_left=tuple(f"l{n}" for n in range(100)),
        links_left_count=5_000,
        notes=tuple(SnapshotNote(path=f"n{n}", text="left out: a cache") for n in range(100)),
        notes_count=7_000,
    )
    show_loss(left, said=True)
    told = capsys.readouterr().err
    assert "4,980 more links" in told
    assert "6,980 more notes" in told
    assert len(told.splitlines()) < 50
