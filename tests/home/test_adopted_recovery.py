"""An adopted agent is lost with its machine, and comes back from words and one place."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.app.adopt import prepare, survey
from holdfast.app.agent_home import home_folder, load_home
from holdfast.app.demo.machine import AGENT, Machine, back_up, bring_back, give_identity, lose
from holdfast.app.handoff import read_answer
from holdfast.identity.public_file import read_identity

sys.path.insert(0, str(Path(__file__).parent))

from foreign_folders import openclaw, snapshot


@holdfast.task
async def wonder(run: holdfast.Run) -> None:
    await run.approve("is anybody there?")


@pytest.mark.parametrize("durable", [False, True], ids=["no journal", "with a journal"])
async def test_words_and_one_place_bring_an_adopted_agent_back(
    tmp_path: Path, durable: bool
) -> None:
    folder, place, old = tmp_path / "clawd", tmp_path / "place", Machine(tmp_path / "old")
    folder.mkdir(mode=0o755)
    openclaw(folder)
    before = snapshot(folder)
    home = prepare(survey(folder, name=AGENT))
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
