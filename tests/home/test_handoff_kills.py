"""A sample of `make handoff-kills`, and the command on a folder without its journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.memory.handoff import Handoff, parse, render
from holdfast.memory.heartbeat import BEGIN, END
from holdfast_proofs.handoff_kills.__main__ import sweep
from holdfast_proofs.handoff_kills.judge import judge
from holdfast_proofs.handoff_kills.truth import Truth, What

LAG_MS = 10_000  # of a machine that does other things; the figure is the full sweep's


async def test_files_alone_answer_after_kills_at_random_moments() -> None:
    figures = await sweep(4, seed=7, lag_ms=LAG_MS)
    assert figures.findings == []
    assert figures.correct == figures.points == 4
    assert figures.facts > 10


def test_the_judge_notices_what_is_missing_and_what_is_untrue(tmp_path: Path) -> None:
    truth = Truth(tmp_path / "tools")
    truth.note(What.SUBMITTED, "T1", 1_000)
    truth.note(What.ANSWERED, "T1/4", 5_000)
    block = BEGIN + b"\n- [ ] errand (T1): running\n" + END
    told = Handoff(
        agent="ada",
        agent_id="",
        at_ms=6_000,
        where=("task T1 errand: running",),
        decided=('T1/4 (errand): "pay?" was granted by "eve"',),
    )

    def found(handoff: Handoff, *, killed_ms: int) -> list[str]:
        return judge(handoff, block, truth, killed_ms=killed_ms, lag_ms=1_000, ended=set()).findings

    assert found(told, killed_ms=6_000) == []
    old = Handoff(agent="ada", agent_id="", at_ms=4_500, where=told.where)
    assert found(old, killed_ms=5_500) == []
    assert "missing after 1500 ms" in found(old, killed_ms=6_500)[0]
    hollow = Handoff(agent="ada", agent_id="", at_ms=6_000, where=told.where)
    assert "older than its as-of" in found(hollow, killed_ms=6_000)[0]
    lie = Handoff(
        agent="ada",
        agent_id="",
        at_ms=6_000,
        where=told.where,
        decided=told.decided,
        changed=("2026-11-15 10:00:00 T1/5 (pay) succeeded: 1",),
    )
    assert "untrue" in found(lie, killed_ms=6_000)[0]


def test_without_the_journal_the_command_says_what_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "ada"
    home.mkdir(mode=0o700)
    (home / "holdfast.toml").write_text('agent = "ada"\n')
    told = Handoff(agent="ada", agent_id="hf1x", at_ms=1_700_000_000_123, where=("task T1",))
    (home / "handoff.md").write_text(render(told))
    assert main(["handoff", "--home", str(home)]) == 0
    said = capsys.readouterr()
    assert parse(said.out) == told
    assert "no journal" in said.err
    assert main(["handoff", "--home", str(home), "--json"]) == 0
    shape = json.loads(capsys.readouterr().out)
    assert shape["source"] == "file"
    assert shape["id"] == "hf1x"
    assert shape["where"] == ["task T1"]
    (home / "handoff.md").unlink()
    assert main(["handoff", "--home", str(home)]) == 3
