"""A journal that several processes make at the same moment is one journal."""

from __future__ import annotations

import subprocess

from holdfast_proofs.support.command_line import WAIT_S, Commands, command_line, environment

AT_ONCE = 6


def test_many_first_commands_at_once(hf: Commands) -> None:
    words = command_line("submit", "app.py:only", "ada", "--no-follow")
    started = [
        subprocess.Popen(
            words, cwd=hf.folder, env=environment(hf.folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(AT_ONCE)
    ]
    ended = [(*process.communicate(timeout=WAIT_S), process.returncode) for process in started]
    assert [code for _, _, code in ended] == [0] * AT_ONCE
    assert all(error.startswith("no worker serves this journal yet") for _, error, _ in ended)
    found = {one["task_id"] for one in hf.look("task", "list", "--json").json["tasks"]}
    assert found == {task_id.strip() for task_id, _, _ in ended}
    assert hf.look("doctor", "--deep", code=1).out.count("damage") == 0
