"""Which mail was first sent after a restore: what proves it, and all that proves nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import Correspondent, make_correspondent

import holdfast
from holdfast.app.holdfast import Holdfast
from holdfast.app.mail import mail_job
from holdfast.app.mail.examine_relays import examine_relays
from holdfast.app.mail.resend import Resender
from holdfast.app.mail.since_restore import find_since, keep_rewound, make_echo
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import file_at
from holdfast.host.log import Log
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Filter
from holdfast.journal.durability import Life
from holdfast.recovery.recover_journal import recover_journal
from holdfast.relay.client.profile import echo_in, find_own_profile
from holdfast.runtime.task.mail_task import MAIL_NAME, letter_of
from holdfast.runtime.tool import mail_tool
from holdfast.testing.lab import Lab, fast, wait_until
from holdfast.testing.mail import ScriptedPost
from holdfast_proofs.support.relays import RelayProcess, relays

FIRST = Life(3, 1_000)


def test_each_relay_is_asked_for_held_mail_once_after_a_restore_however_late_it_answers(tmp_path: Path) -> None:
    instance = tmp_path / "instance"
    assert find_since(instance, FIRST).rewound == ()
    for relay in ("a", "b", "a"):
        keep_rewound(instance, FIRST, relay)
    assert find_since(instance, FIRST).rewound == ("a", "b")
    second = Life(4, 2_000)
    assert find_since(instance, second).rewound == ()
    keep_rewound(instance, second, "b")
    assert find_since(instance, second).rewound == ("b",)
    (instance / "mail.json").write_text("{")
    assert find_since(instance, second).rewound == ()


def test_a_word_is_made_once_every_relay_of_the_profile_has_let_the_agent_in(tmp_path: Path) -> None:
    assert make_echo(tmp_path, FIRST, ()) == ""  # an agent without relays
    keep_rewound(tmp_path, FIRST, "a")
    assert make_echo(tmp_path, FIRST, ("a", "b")) == ""
    keep_rewound(tmp_path, FIRST, "b")
    word = make_echo(tmp_path, FIRST, ("a", "b"))
    assert word
    keep_rewound(tmp_path, FIRST, "c")
    assert make_echo(tmp_path, FIRST, ("a", "b", "c", "d")) == word


@pytest.mark.parametrize("later", [Life(4, 1_000), Life(3, 2_000), Life(4, 2_000)])
def test_a_word_proves_nothing_in_another_life_of_the_journal(tmp_path: Path, later: Life) -> None:
    keep_rewound(tmp_path, FIRST, "a")
    word = make_echo(tmp_path, FIRST, ("a",))
    assert find_since(tmp_path, FIRST).life_of(word) == FIRST
    assert find_since(tmp_path, later).life_of(word) is None


def test_no_word_and_another_word_prove_nothing(tmp_path: Path) -> None:
    assert find_since(tmp_path, FIRST).life_of("") is None
    keep_rewound(tmp_path, FIRST, "a")
    make_echo(tmp_path, FIRST, ("a",))
    for other in ("", "0" * 24):
        assert find_since(tmp_path, FIRST).life_of(other) is None


# the sender


@holdfast.task
async def greet(run: holdfast.Run, to: str, body: Any) -> Any:
    return await run.send(to, body)


async def test_every_try_says_the_word_that_was_known_when_the_message_was_planned(lab: Lab) -> None:
    """Also one that is made after the recipient was restored: its lost timeline may have had the first try."""
    away = asyncio.Event()

    async def hang() -> None:
        away.set()
        await asyncio.Event().wait()

    for number, (before, after) in enumerate((("", "new"), ("old", "new"))):
        away.clear()
        post = ScriptedPost(hang)
        post.echo = before
        async with lab.open(greet, post=post, grace_s=0) as hf:
            handle = await hf.submit(greet, to="hf1bob", body=number)
            await away.wait()
        post.echo = after
        async with lab.open(greet, post=post) as hf:
            await hf.task(handle.id).result(10)
            resender = Resender(journal=hf.journal, post=post, log=Log(), first_s=0)
            assert await resender.look() == number + 1
        assert [one.echo for one in post.tries if one.body == number] == [before] * 3


async def test_a_sender_that_was_restored_says_no_word(lab: Lab) -> None:
    """Its own lost timeline may have sent the message before the recipient asked."""
    post = ScriptedPost()
    post.echo = "word"
    async with lab.open(greet, post=post) as hf:
        await (await hf.submit(greet, request_id="1", to="hf1bob", body=1)).result(10)
    await recover_journal(file_at(lab.journal))
    async with lab.open(greet, post=post) as hf:
        await (await hf.submit(greet, request_id="2", to="hf1bob", body=2)).result(10)
        await (await hf.submit(greet, to="hf1bob", body=3)).result(10)
    assert [(one.body, one.echo) for one in post.tries] == [(1, "word"), (2, ""), (3, "word")]


async def test_a_message_is_planned_without_a_word_while_the_recipient_cannot_be_found(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(ScriptedPost):
        async def echo_of(self, to: str) -> str:
            await asyncio.Event().wait()
            return "word"

    monkeypatch.setattr(mail_tool, "ASK_S", 0.05)
    post = Away()
    async with lab.open(greet, post=post) as hf:
        await (await hf.submit(greet, to="hf1bob", body=1)).result(10)
    assert [one.echo for one in post.tries] == [""]


# both


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[RelayProcess]]:
    with relays(tmp_path_factory.mktemp("relays"), "r1", "r2", "r3") as started:
        yield started


class Payer:
    """Handles each message with a call that must not be repeated, and whose far end cannot be asked."""

    def __init__(self) -> None:
        self.paid: list[Any] = []

        @holdfast.tool
        async def pay(call: holdfast.Call, what: Any) -> None:
            self.paid.append(what)

        @holdfast.on_mail
        async def handle(run: holdfast.Run, letter: holdfast.Letter) -> None:
            await run.call(pay, what=letter.body)

        self.task = handle


@asynccontextmanager
async def served(one: Correspondent, *tasks: holdfast.TaskType) -> AsyncGenerator[Holdfast]:
    async with holdfast.open(one.home.journal, tasks=tasks, settings=fast()) as hf:
        yield hf


async def suspicions(one: Correspondent) -> list[str]:
    """The relays that `doctor` waits for."""
    text = (
        "since the restore all new mail counts as mail that the lost copy may have handled: this agent has not logged"
    )
    found = [finding.text async for finding in examine_relays(one.home) if finding.text.startswith(text)]
    return found[0].removeprefix(f"{text} in at ").split(", ") if found else []


async def test_after_a_restore_only_mail_that_may_have_been_handled_waits_for_a_person(
    tmp_path: Path, running: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost: a message that was paid for, and comes again from the relays or from its sender. New: one that was planned
    when the sender had seen the restored agent's profile."""
    monkeypatch.setattr(mail_job, "ECHO_LOOK_S", 0.05)
    ada, bob = (Correspondent(make_correspondent(tmp_path / name, name)) for name in ("ada", "bob"))
    for one in (ada, bob):
        await one.register(running)
    his = Payer()

    async def send(at_adas: Holdfast, body: str) -> None:
        await (await at_adas.submit(greet, to=bob.id, body=body)).result(20)

    def paid(*bodies: str) -> Any:
        async def look() -> bool:
            return sorted(his.paid) == sorted(bodies)

        return wait_until(look)

    async with served(ada, greet) as at_adas:
        async with served(bob, his.task):
            await send(at_adas, "kept")
            await paid("kept")
            await asyncio.sleep(0.5)  # its acknowledgement
        journal = bob.home.folder / "journal.db"
        older = journal.read_bytes()
        async with served(bob, his.task):
            await send(at_adas, "lost")
            await paid("kept", "lost")
            await asyncio.sleep(0.5)
        for file in bob.home.folder.glob("journal.db*"):
            file.unlink()
        journal.write_bytes(older)
        journal.chmod(0o600)
        keys = load_or_create(bob.home.keys_file, journal_exists=True, entropy=SystemEntropy())
        admin = journal_at(bob.home.journal)
        await admin.restore(keys=keys, clock=SystemClock())
        await send(at_adas, "early")  # its sender has not seen the new profile
        assert sorted(await suspicions(bob)) == sorted(one.at.url for one in running)
        async with served(bob, his.task) as at_bobs:

            async def asked() -> bool:
                held = find_own_profile(bob.home)
                return held is not None and bool(echo_in(held.record))

            await wait_until(asked)
            assert at_adas.engine is not None
            post: Any = at_adas.engine._post

            async def seen() -> bool:  # the profile is in its folder before it is at the relays
                post._opened.post.book._known.clear()  # it looks again, as it does after five minutes
                return bool(await post.echo_of(bob.id))

            await wait_until(seen)
            await send(at_adas, "new")
            await paid("kept", "lost", "new")
            resender = Resender(journal=at_adas.journal, post=post, log=Log(), first_s=0)
            await resender.look()

            async def states() -> dict[str, str]:
                rows = await at_bobs.journal.list_tasks(Filter(name=MAIL_NAME))
                views = [(await at_bobs.journal.read_task(row.task_id), row.state.value) for row in rows]
                return {str(letter_of(view.args).body): state for view, state in views}

            async def settled() -> bool:
                found = await states()
                return found == {"kept": "succeeded", "lost": "parked", "early": "parked", "new": "succeeded"}

            await wait_until(settled)
            await asyncio.sleep(0.5)
            assert await suspicions(bob) == []
        assert sorted(his.paid) == ["kept", "lost", "new"]
