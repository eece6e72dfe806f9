"""Nobody is there: a worker is killed, its unit starts it again, it opens the vault and resumes.

The command, folder and environment are those of deploy/holdfast-agent@.service, read from the
file; systemd itself is not started. Its credentials are a folder that it names.
"""

from __future__ import annotations

import asyncio
import configparser
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.core.clock import SystemEntropy
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import start_blocking
from holdfast.identity.acts.make_agent import AgentPlan, make_agent
from holdfast.identity.paper.phrase import Phrase
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.slots import UnlockKey, credential_key, file_key, new_unlock_text
from holdfast.journal.records import TaskState
from holdfast.layout.witness_address import WitnessFolder

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "holdfast-agent@.service"
APP = Path(__file__).parent / "programs" / "shop.py"
ENTROPY = SystemEntropy()
WAIT_S = 60.0


def make(root: Path, key: UnlockKey) -> Path:
    """The state folder of a machine with one agent, as `holdfast init` leaves it."""
    state = root / "holdfast" / "ada"
    for folder in (root / "holdfast", root / "keys"):
        folder.mkdir(mode=0o700)
    plan = AgentPlan(
        name="ada",
        folder=state,
        vault=root / "keys" / "vault",
        second=root / "keys" / "second",
        witnesses=(WitnessFolder(root / "keys" / "witness"),),
        keys=[key],
        second_keys=[file_key(root / "none", new_unlock_text(ENTROPY))],
        arbiter=str(root / "keys" / "arbiter"),
    )
    asyncio.run(make_agent(plan, show=_unseen, entropy=ENTROPY, port=Sodium()))
    return state


def _unseen(_phrase: Phrase) -> None:
    pass


def by_file(root: Path) -> tuple[UnlockKey, dict[str, str]]:
    text = new_unlock_text(ENTROPY)
    path = root / "unlock"
    path.touch(mode=0o600)
    path.write_bytes(text)
    return file_key(path, text), {}


def by_credential(root: Path) -> tuple[UnlockKey, dict[str, str]]:
    text = new_unlock_text(ENTROPY)
    folder = root / "credentials"
    folder.mkdir(mode=0o700)
    (folder / "vault").touch(mode=0o400)
    (folder / "vault").chmod(0o600)
    (folder / "vault").write_bytes(text)
    (folder / "vault").chmod(0o400)
    return credential_key("vault", text), {"CREDENTIALS_DIRECTORY": str(folder)}


def start(state: Path, url: str, credentials: dict[str, str]) -> subprocess.Popen[bytes]:
    """As the unit does: its command, its folder, no terminal, and no variable but its own."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(UNIT)
    service = unit["Service"]
    variables = {"HOLDFAST_APP": f"{APP}:tasks", "SHOP_URL": url, **credentials}

    def filled(text: str) -> str:
        text = text.replace("%S/holdfast/%i", str(state)).replace("%i", "ada")
        return text.replace("${HOLDFAST_APP}", variables["HOLDFAST_APP"])

    words = shlex.split(filled(service["execstart"].replace("$HOLDFAST_OPTIONS", "")))
    assert words[0] == "/opt/holdfast/bin/holdfast"
    with open(state.parent / "log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast", *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=filled(service["workingdirectory"]),
            env={**variables, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")},
            start_new_session=True,
        )


def kill(parent: subprocess.Popen[bytes]) -> None:
    """The machine goes off: the parent and its worker at once."""
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()


async def submitted(journal: Path) -> str:
    async with holdfast.open(journal, serve=False) as hf:
        return (await hf.submit(_order(), cents=500, request_id="order-1")).id


async def state_of(journal: Path, task_id: str) -> TaskState:
    async with holdfast.open(journal, serve=False) as hf:
        return await hf.task(task_id).state()


def _order() -> holdfast.TaskType:
    from holdfast.app.loading import load_app

    return load_app(f"{APP}:tasks").tasks["order"]


@pytest.mark.parametrize("slot", [by_file, by_credential])
def test_a_killed_worker_is_started_by_its_unit_and_resumes(
    tmp_path: Path, slot: Callable[[Path], tuple[UnlockKey, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed inside the payment; the next start asks nobody, and pays once."""
    tmp_path.chmod(0o700)
    key, credentials = slot(tmp_path)
    state = make(tmp_path, key)
    journal = state / "journal.db"
    for name, value in credentials.items():
        monkeypatch.setenv(name, value)
    task_id = asyncio.run(submitted(journal))
    with start_blocking("payment", faults=(Fault(kind=FaultKind.HOLD),)) as far:
        first = start(state, far.url, credentials)
        try:
            far.wait_inside(timeout_s=WAIT_S)
        finally:
            kill(first)
        far.faults()
        far.release()
        second = start(state, far.url, credentials)
        try:
            wait_until(lambda: asyncio.run(state_of(journal, task_id)) is TaskState.SUCCEEDED, state)
            second.send_signal(signal.SIGTERM)
            assert second.wait(WAIT_S) == 0
        finally:
            if second.poll() is None:
                kill(second)
        page = far.ledger()
    assert (page.count, page.duplicates) == (2, 0)
    assert {effect.base for effect in page.effects} == {"1", "2"}


def test_without_its_slot_it_says_so_and_does_nothing(tmp_path: Path) -> None:
    """The credential is not there: it waits for the vault, asks nobody, and makes no journal."""
    tmp_path.chmod(0o700)
    key, credentials = by_credential(tmp_path)
    state = make(tmp_path, key)
    shutil.rmtree(credentials["CREDENTIALS_DIRECTORY"])
    worker = start(state, "http://127.0.0.1:9", credentials)
    try:
        wait_until(lambda: "cannot open the vault" in (state.parent / "log").read_text(), state)
    finally:
        kill(worker)
    assert not (state / "journal.db").exists()


def test_the_unit_names_what_an_agent_needs() -> None:
    """Folders it may write to, and the credential that opens the vault."""
    text = UNIT.read_text()
    assert "LoadCredentialEncrypted=vault:" in text
    assert "--journal %S/holdfast/%i/journal.db" in text
    assert "StateDirectory=holdfast/%i holdfast-keys/%i" in text


def wait_until(met: Callable[[], bool], state: Path) -> None:
    ends = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < ends, (state.parent / "log").read_text()
        time.sleep(0.05)
