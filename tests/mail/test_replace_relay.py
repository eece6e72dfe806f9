"""Relays that are gone are replaced, by a spare one or by one command; an agent gets its relays when it is made."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import PORT, Correspondent, key, make_correspondent, take

from holdfast.app.mail import replace_relay
from holdfast.app.mail.replace_relay import find_gone, replace_gone_relays
from holdfast.cli.main import main
from holdfast.errors import EXIT_CONFLICT
from holdfast.layout.witness_address import parse_relay_address
from holdfast.relay.client.profile import find_own_profile
from holdfast.relay.client.status import RelayStatus, shared_fates
from holdfast_proofs.support.relays import RelayProcess, relays

NOW = 1_800_000_000


def listed(one: Correspondent) -> tuple[list[str], list[str]]:
    held = find_own_profile(one.home)
    assert held is not None
    return [relay.url for relay in held.record.relays], [text.partition("#")[0] for text in held.record.left]


def set_mail(one: Correspondent, spares: list[str]) -> None:
    path = one.agent.folder / "holdfast.toml"
    text = path.read_text().partition("\n[mail]")[0]
    path.write_text(f"{text}\n[mail]\nspare_relays = {json.dumps(spares)}\nreplace_after_s = 600\n")


def test_a_relay_that_is_gone_for_long_is_replaced_and_mail_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relays(tmp_path, "r1", "r2", "r3", "spare") as (r1, r2, r3, spare):
        ada, bob = (Correspondent(make_correspondent(tmp_path / name, name)) for name in ("ada", "bob"))

        async def begin() -> None:
            await ada.register([r1, r2, r3])
            await bob.register([r2, r3])

        asyncio.run(begin())
        away = RelayProcess(tmp_path / "away", address=r1.address.replace(str(r1.port), "1"))
        set_mail(ada, [away.address, "no address", spare.address])

        def gone(now: int) -> list[str]:
            return [one.url for one in asyncio.run(find_gone(ada.home, now=now, port=PORT))]

        assert gone(NOW) == []
        r1.kill()
        assert (gone(NOW), gone(NOW + 599), gone(NOW + 600)) == ([], [], [r1.at.url])
        r1.start()
        assert (gone(NOW + 700), gone(NOW + 700)) == ([], []), "it is back"
        r1.kill()
        gone(NOW + 800)
        monkeypatch.setattr(replace_relay.time, "time", lambda: NOW + 1_400)
        set_mail(ada, [away.address])
        (failed,) = asyncio.run(replace_gone_relays(ada.home))
        assert (failed.gone, failed.spare) == (r1.at.url, "")
        assert failed.trouble
        assert r1.at.url in listed(ada)[0], "where no spare relay answers nothing changes"
        set_mail(ada, [away.address, "no address", spare.address])
        monkeypatch.undo()
        since = json.loads((ada.home.instance / replace_relay.FILE).read_bytes())
        (ada.home.instance / replace_relay.FILE).write_text(json.dumps(dict.fromkeys(since, 1_000)))
        (done,) = asyncio.run(replace_gone_relays(ada.home))
        assert (done.gone, done.spare, done.trouble) == (r1.at.url, spare.at.url, "")
        assert listed(ada) == ([r2.at.url, r3.at.url, spare.at.url], [r1.at.url])
        assert asyncio.run(replace_gone_relays(ada.home)) == []
        for one in (r2, r3):
            one.kill()

        async def write() -> None:
            async with ada.open() as hers:
                for one in (r2, r3):
                    one.start()
                async with bob.open() as his:
                    await his.post.send(to=ada.id, body="found you", key=key(1))
                (letter,) = await take(hers, 1)
                assert letter.body == "found you"

        asyncio.run(write())


def test_init_registers_at_relays_and_one_command_replaces_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with relays(tmp_path, "r1", "r2") as (r1, r2):
        words = os.open(tmp_path / "words", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        options = ["--second", "second", "--vault", "vault", "--arbiter", "arbiter", "--witness", "witness"]
        options += ["--unlock-file", "unlock", "--second-unlock-file", "unlock2", "--words-fd", str(words)]
        assert main(["init", "ada", *options, "--relay", r1.address, "--json"]) == 0
        os.close(words)
        assert json.loads(capsys.readouterr().out)["relays"] == [r1.address]
        found = main(["relay", "list", "--home", "ada", "--json"])
        (row,) = json.loads(capsys.readouterr().out)["relays"]
        assert (found, row["newest"], row["listed"]) == (0, True, True)
        assert main(["relay", "add", r2.address, "--instead-of", r1.at.url, "--home", "ada"]) == 0
        assert f"left: {r1.at.url}" in capsys.readouterr().err
        assert main(["relay", "list", "--home", "ada", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["relays"]
        assert row["address"] == r2.address
        assert main(["relay", "add", r1.address, "--instead-of", "other.example", "--home", "ada"]) == 2


@pytest.mark.parametrize("command", ["init", "adopt"])
def test_an_agent_whose_invite_was_refused_is_finished_by_the_same_command(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ada").mkdir(mode=0o700)
    (tmp_path / "ada" / "MEMORY.md").write_text("the flight is on Tuesday\n")
    words, home = tmp_path / "words", "ada" if command == "init" else "ada/.holdfast"
    line = ["init", "ada"] if command == "init" else ["adopt", "ada", "--name", "ada", "--yes"]
    line += ["--second", "second", "--vault", "vault", "--arbiter", "arbiter", "--witness", "witness"]
    line += ["--unlock-file", "unlock", "--second-unlock-file", "unlock2", "--invite", "invite", "--json"]

    def run(*relay: str) -> int:
        capsys.readouterr()
        fd = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return main([*line, "--words-fd", str(fd), *relay])
        finally:
            os.close(fd)

    def new_invite() -> str:
        capsys.readouterr()
        assert main(["relay", "invite", "--folder", str(r1.folder)]) == 0
        return capsys.readouterr().out

    with relays(tmp_path, "r1", options=()) as (r1,):
        other, used = make_correspondent(tmp_path / "other"), new_invite()
        (tmp_path / "invite").write_text(used)
        assert main(["relay", "add", r1.address, "--invite", "invite", "--home", str(other.folder)]) == 0
        shown = list[bytes]()
        for text, why in ((used, "another agent has used this invite"), ("wrong\n", "does not know this invite")):
            (tmp_path / "invite").write_text(text)
            assert run("--relay", r1.address) == EXIT_CONFLICT
            said = capsys.readouterr().err
            assert why in said
            assert "the agent is made, and its recovery words are valid" in said
            assert "run the same command again" in said
            shown.append(words.read_bytes())
        (tmp_path / "invite").write_text(new_invite())
        if command == "init":  # another command than the first one: nothing is changed
            assert run("--relay", r1.address, "--vault", "other") == EXIT_CONFLICT
            assert "already has a vault in" in capsys.readouterr().err
        assert run("--relay", r1.address) == 0
        done = json.loads(capsys.readouterr().out)
        assert (done if command == "init" else done["identity"])["relays"] == [r1.address]
        assert {words.read_bytes(), *shown} == {shown[0]}  # shown once: those words are the agent's
        assert main(["relay", "list", "--home", home, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["relays"]
        assert (row["newest"], row["listed"]) == (True, True)
        if command == "init":  # it is whole now
            assert run("--relay", r1.address) == EXIT_CONFLICT
            assert "there is already an agent in" in capsys.readouterr().err


def test_doctor_names_the_command_for_an_agent_without_relays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = make_correspondent(tmp_path / "ada")
    assert main(["relay", "doctor", "--home", str(agent.folder)]) == 0
    assert "`holdfast relay add ADDRESS`" in capsys.readouterr().out


def test_relays_of_one_operator_domain_or_region_are_a_finding() -> None:
    def status(host: str, operator: str, region: str = "") -> RelayStatus:
        address = parse_relay_address(f"https://{host}#z6MkvAddmJRTcUThiunL8ySJmBmvbZp4yBCbVVx9CEZ1gcJ5")
        return RelayStatus(address=address, operator=operator, witness=False, listed=True, handles=(), region=region)

    a, b, c = status("a.one.example", "one"), status("b.one.example", "two"), status("c.two.example", "two")
    assert shared_fates([a]) == shared_fates([]) == shared_fates([a, b, c]) == []
    assert shared_fates([a, b]) == ["are in the domain one.example"]
    assert shared_fates([b, c]) == ["are run by two"]
    assert shared_fates([replace(one, region="eu") for one in (a, b, c)]) == ["are in the region eu"]
    assert shared_fates([replace(one, operator="one.example") for one in (a, b)]) == ["are run by one.example"]
