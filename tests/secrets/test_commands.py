"""`holdfast secret`: where a value may come from, what is shown, what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import SecretInUse
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, wait_state
from holdfast_proofs.support.command_line import WAIT_S, Commands, command_line, environment

OpenStore = Callable[[], SecretFile]
OLD, NEW = "correct-horse-battery", "staple-engine-trumpet"
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)


@pytest.fixture
def value(tmp_path: Path) -> Path:
    path = tmp_path / "value"
    path.touch(mode=0o600)
    path.write_text(OLD + "\n")
    return path


def test_a_value_from_a_private_file(hf: Commands, value: Path, open_store: OpenStore) -> None:
    """The first command in a folder: the journal and its keys are made."""
    done = hf.look("secret", "set", "billing", "--from-file", str(value))
    assert "secret://billing version 1" in done.err
    assert open_store().find_value("billing", 1) == OLD
    value.write_text(NEW)
    hf.look("secret", "rotate", "secret://billing", "--from-file", str(value))
    assert open_store().find_value("billing", 2) == NEW
    shown = hf.look("secret", "list").out + hf.look("secret", "list", "--json").out
    assert OLD not in shown
    assert NEW not in shown
    listed = hf.look("secret", "list", "--json").json["secrets"]
    assert [(one["name"], one["version"]) for one in listed] == [("billing", 2)]
    assert [one["active"] for one in listed[0]["versions"]] == [False, True]


def test_a_wide_file_is_refused(hf: Commands, value: Path) -> None:
    value.chmod(0o644)
    done = hf.look("secret", "set", "billing", "--from-file", str(value), code=7)
    assert "chmod 600" in done.err


def test_a_value_from_a_pipe(hf: Commands, open_store: OpenStore) -> None:
    hf("secret", "set", "billing", "--from-fd", "0", stdin=OLD + "\n")
    assert open_store().find_value("billing", 1) == OLD
    done = hf("secret", "set", "other", "--from-fd", "9", code=2)
    assert "--from-fd 9 cannot be read" in done.err


def test_a_value_typed_twice_and_not_shown(hf: Commands, open_store: OpenStore) -> None:
    code, shown = _typed(hf, *(OLD, NEW) * 3)
    assert code == 2
    assert "the two entries differ" in shown
    code, shown = _typed(hf, OLD, NEW, OLD, OLD)  # a typo, then once more
    assert code == 0
    assert open_store().find_value("billing", 1) == OLD
    assert OLD not in shown


def _typed(hf: Commands, *answers: str) -> tuple[int, str]:
    """A person at a terminal who answers each prompt; the exit code and what was on the screen."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command_line("secret", "set", "billing"),
        cwd=hf.folder,
        env=environment(hf.folder),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    screen = b""
    waiting = list(answers)
    try:
        while part := os.read(ours, 1_000):
            screen += part
            if waiting and screen.endswith(b": "):
                os.write(ours, waiting.pop(0).encode() + b"\n")
    except OSError:
        pass  # the command has ended
    finally:
        os.close(ours)
        code = process.wait(WAIT_S)
    return code, screen.decode()


def test_nobody_types_into_a_pipe(hf: Commands) -> None:
    done = hf("secret", "set", "billing", stdin=OLD, code=2)
    assert "--from-fd 0" in done.err
    assert OLD not in done.err


@pytest.mark.parametrize("words", [("set", "billing", OLD), ("rotate", "billing", f"--value={OLD}")])
def test_a_value_is_never_a_word(hf: Commands, words: tuple[str, ...]) -> None:
    done = hf.look("secret", *words, code=2)
    assert "--from-fd" in done.err
    assert OLD not in done.err


def test_short_values_and_unknown_names(hf: Commands, value: Path) -> None:
    value.write_text("hunter2")
    done = hf.look("secret", "set", "billing", "--from-file", str(value), code=2)
    assert "bad-secret" in done.err
    assert "hunter2" not in done.err
    value.write_text(OLD)
    hf.look("secret", "set", "known", "--from-file", str(value))
    for words in (("rotate", "gone", "--from-file", str(value)), ("remove", "gone", "--yes")):
        assert "secret-not-found" in hf.look("secret", *words, code=3).err
    value.write_bytes(b"\xff\xfe" * 10)
    done = hf.look("secret", "set", "billing", "--from-file", str(value), code=2)
    assert "base64" in done.err


def test_removing_asks(hf: Commands, value: Path, open_store: OpenStore) -> None:
    hf.look("secret", "set", "billing", "--from-file", str(value))
    assert "cannot ask for confirmation" in hf("secret", "remove", "billing", code=2).err
    hf.look("secret", "remove", "billing", "--dry-run")
    assert open_store().find_current("billing") == 1
    hf.look("secret", "remove", "billing", "--yes")
    assert open_store().find_current("billing") is None
    assert json.loads(hf.look("secret", "list", "--json").out) == {"secrets": []}


def test_a_secret_that_open_steps_use_is_not_removed(lab: Lab, hf: Commands, open_store: OpenStore) -> None:
    open_store().set("billing", OLD)
    pay = Scripted(KEYED, "paid", name="pay", needs_approval=True, secrets={"token": "billing"})

    @holdfast.task
    async def one(run: holdfast.Run) -> None:
        await run.call(pay.tool, token="secret://billing")

    async def plan() -> str:
        async with lab.open(one) as opened:
            handle = await opened.submit(one)
            await wait_state(handle, TaskState.WAITING)
            return handle.id

    task_id = asyncio.run(plan())
    done = hf.look("secret", "remove", "billing", "--yes", code=SecretInUse.exit_code)
    assert f"{task_id}/1" in done.err
    assert open_store().find_current("billing") == 1
    hf.look("secret", "remove", "billing", "--yes", "--force")
    assert open_store().find_current("billing") is None


def test_doctor_looks_at_the_secrets(lab: Lab, hf: Commands, value: Path) -> None:
    hf.look("secret", "set", "billing", "--from-file", str(value))
    found = {one["check"]: one for one in hf.look("doctor", "--json", code=0).json["findings"]}
    assert found["secrets"]["text"].startswith("1 set")
    (lab.folder / "secrets.sealed").write_bytes(b"x" * 200)
    done = hf.look("doctor", "--json", code=6).json["findings"]
    levels = {one["check"]: one["level"] for one in done}
    assert levels["secrets-damaged"] == "damage"
    assert levels["journal"] == "ok", "the journal itself is looked at all the same"
