"""An agent with an identity on several hosts: the journal that they share says who may act."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock
from holdfast.errors import BadSettings, MoveRefused
from holdfast.identity.journal_keys.vault_keys import point_keys
from holdfast.identity.vault.vault import open_vault
from holdfast.journal.postgres import restoring
from holdfast.journal.postgres.links import Link
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast_proofs.support.command_line import command_line
from holdfast_proofs.support.hosts import Host
from holdfast_proofs.support.postgres import Server

NewHost = Callable[..., Host]


def set_identity(folder: Path, **values: str) -> None:
    path = folder / "holdfast.toml"
    lines = [line for line in path.read_text().splitlines() if line.split(" = ")[0] not in values]
    at = lines.index("[identity]") + 1
    lines[at:at] = [f"{name} = {json.dumps(value)}" for name, value in values.items() if value]
    path.write_text("\n".join(lines) + "\n")


@contextmanager
def signing(home: Path, socket: Path) -> Generator[None]:
    words = command_line("identity", "signer", "--home", str(home), "--socket", str(socket))
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not socket.exists():
                assert process.poll() is None
                time.sleep(0.02)
            yield
        finally:
            process.kill()


def test_all_hosts_act_at_once_and_stop_when_the_incarnation_has_risen(
    agent: AgentHome,
    place: PostgresPlace,
    url: str,
    new_host: NewHost,
    second_host: Callable[..., AgentHome],
    tmp_path: Path,
) -> None:
    """The keys reach the first from its vault, the second from its signer."""
    assert agent.by_journal
    one, two = new_host("one", at=""), new_host("two", at="")
    for host in (one, two):
        host.folder.rmdir()
        second_host(host.folder)
    vault = shutil.copytree(tmp_path / "machine/vault", tmp_path / "vault-1")
    set_identity(one.folder, vault=str(vault))
    with open_vault(vault) as opened:
        point_keys(one.folder / "keys.json", opened)
    set_identity(two.folder, vault="", signer=str(tmp_path / "s"))
    (two.folder / "keys.json").unlink()
    with signing(agent.folder, tmp_path / "s"):
        workers = [host.worker() for host in (one, two)]
        for worker in workers:
            worker.wait_event("session-begun")
        assert json.loads(two.submit('{"cents": 5}', "order-1"))["cents"] == 5
        shown = one.look("journal", "show", "--json", at=url).json
        assert (shown["workers"], shown["incarnation"]) == (2, 2)
        asyncio.run(raise_incarnation(place, one.folder / "instance" / shown["journal_id"], to=3))
        for worker in workers:
            assert "SessionLost" in worker.wait_event("session-failing")["error"]
            worker.wait_event("session-begun")  # under the new one
        assert one.look("journal", "show", "--json", at=url).json["incarnation"] == 3
    assert not list(tmp_path.glob("*/instance/lease.json"))  # nobody asked for the lease of a machine


async def raise_incarnation(place: PostgresPlace, instance: Path, *, to: int) -> None:
    """As whoever uses the journal alone does; here beside living workers."""
    link = await Link.open(place)
    try:
        await restoring.raise_incarnation(link, instance, to=to, clock=SystemClock())
    finally:
        await link.close()


def test_the_setting_must_fit_the_journal(
    agent: AgentHome, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder says nothing to other hosts, and a file nothing about copies elsewhere; both ways back are a command."""
    monkeypatch.setenv("HOME", str(tmp_path))
    home = ("--home", str(agent.folder))
    assert "arbiter" not in doctor(capsys, home)
    set_identity(agent.folder, arbiter=str(tmp_path / "arbiter"))
    assert '"journal"' in doctor(capsys, home)["arbiter"]
    set_identity(agent.folder, arbiter="journal")
    assert main(["migrate", "export", str(tmp_path / "package"), *home, "--json"]) == MoveRefused.exit_code
    assert "holdfast journal copy" in capsys.readouterr().err

    assert main(["journal", "copy", "--to", str(agent.folder / "journal.db"), *home, "--yes"]) == 0
    moved = load_home(agent.folder)
    assert (moved.journal_url, moved.arbiter) == ("", tmp_path / ".config/holdfast/arbiter/ada")
    set_identity(agent.folder, arbiter="journal")
    assert "folder" in doctor(capsys, home)["arbiter"]
    with pytest.raises(BadSettings, match="says nothing about other copies"):
        asyncio.run(serve(agent.folder / "journal.db"))


async def serve(journal: Path) -> None:
    async with holdfast.open(journal):
        pass


def doctor(capsys: pytest.CaptureFixture[str], home: tuple[str, str]) -> dict[str, str]:
    """What to do, by check."""
    capsys.readouterr()
    main(["doctor", *home, "--json"])
    return {one["check"]: one["mend"] for one in json.loads(capsys.readouterr().out)["findings"]}


def test_init_beside_a_url_asks_nothing_new(tmp_path: Path, url: str, server: Server) -> None:
    folder = tmp_path / "bob"
    folder.mkdir(mode=0o700)
    (folder / "holdfast.toml").write_text(f'[journal]\nurl = "{url}"\n')
    for name in ("unlock-1", "unlock-2", "words"):
        (tmp_path / name).touch(0o600)
    (tmp_path / "unlock-1").write_text("ab" * 32)
    (tmp_path / "unlock-2").write_text("cd" * 32)
    words = ["init", "bob", "--home", str(folder), "--vault", str(tmp_path / "vault"), "--second", str(tmp_path / "2")]
    words += ["--unlock-file", str(tmp_path / "unlock-1"), "--second-unlock-file", str(tmp_path / "unlock-2")]
    words += ["--witness", str(tmp_path / "w")]
    with open(tmp_path / "words", "a") as out:
        assert main([*words, "--words-fd", str(out.fileno())]) == 0
    assert load_home(folder).by_journal
