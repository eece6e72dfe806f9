"""Mail between two agents with their journals, over three real relay processes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import Correspondent, key, make_correspondent

import holdfast
from holdfast.app.doctor import Level
from holdfast.app.holdfast import Holdfast
from holdfast.app.mail import mail_job
from holdfast.app.mail.examine_relays import examine_relays
from holdfast.app.mail.intake import Intake
from holdfast.app.mail.mail_room import find_mail_trouble
from holdfast.app.mail.resend import Resender
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.mail import Delivery
from holdfast.errors import JournalStopped
from holdfast.host.log import Log
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.records.records import RotationReason
from holdfast.identity.speaker.open_speaker import VaultSpeaker
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Filter
from holdfast.relay.client.address_book import SCHEME
from holdfast.relay.client.profile import find_own_profile
from holdfast.runtime.task.mail_task import MAIL_NAME, letter_of
from holdfast.testing.lab import fast, program, wait_until
from holdfast_proofs.support.relays import RelayProcess, relays

KEY = key(77)
AGENT = Path(__file__).parent / "programs" / "mail_agent.py"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[RelayProcess]]:
    with relays(tmp_path_factory.mktemp("relays"), "r1", "r2", "r3") as started:
        yield started


@pytest.fixture
async def pair(tmp_path: Path, running: list[RelayProcess]) -> tuple[Correspondent, Correspondent]:
    for one in running:
        if one.process is None:
            one.start()
    ada, bob = (Correspondent(make_correspondent(tmp_path / name, name)) for name in ("ada", "bob"))
    for one in (ada, bob):
        await one.register(running)
    return ada, bob


@holdfast.task
async def greet(run: holdfast.Run, to: str, body: Any) -> Any:
    return await run.send(to, body, thread="t1")


class Handler:
    def __init__(self) -> None:
        self.seen: list[holdfast.Letter] = []

        @holdfast.on_mail
        async def handle(run: holdfast.Run, letter: holdfast.Letter) -> None:
            self.seen.append(letter)

        self.task = handle


@asynccontextmanager
async def served(one: Correspondent, *tasks: holdfast.TaskType) -> AsyncGenerator[Holdfast]:
    async with holdfast.open(one.home.journal, tasks=tasks, settings=fast()) as hf:
        yield hf


async def mail_of(one: Correspondent) -> list[tuple[str, Any]]:
    """State and letter's body of each task of mail."""
    async with holdfast.open(one.home.journal, serve=False) as hf:
        rows = await hf.journal.list_tasks(Filter(name=MAIL_NAME))
        return [(row.state.value, letter_of((await hf.journal.read_task(row.task_id)).args).body) for row in rows]


async def test_a_task_sends_and_the_other_agent_handles_it_and_the_note_comes_back(
    pair: tuple[Correspondent, Correspondent],
) -> None:
    ada, bob = pair
    hers, his = Handler(), Handler()
    async with served(ada, greet, hers.task) as at_adas, served(bob, his.task):
        handle = await at_adas.submit(greet, to=bob.id, body={"n": 1})
        sent = await handle.result(20)
        assert len(sent["relays"]) == 2

        async def noted() -> bool:
            return bool(his.seen) and bool(await at_adas.journal.inbox_of(handle.id))

        await wait_until(noted)
    assert [(one.sender, one.thread, one.body) for one in his.seen] == [(ada.id, "t1", {"n": 1})]


async def test_doctor_says_that_relays_refuse_a_worker_whose_clock_is_wrong_and_when_it_is_over(
    pair: tuple[Correspondent, Correspondent], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bob = pair
    ahead_s = 86_400

    def now(_: VaultSpeaker) -> int:
        return int(time.time()) + ahead_s

    monkeypatch.setattr(VaultSpeaker, "_now", now)
    monkeypatch.setattr(mail_job, "Intake", partial(Intake, look_s=0.1))

    async def all_refuse() -> bool:
        return len(find_mail_trouble(bob.home.instance)) == 3

    async def none_refuses() -> bool:
        return not find_mail_trouble(bob.home.instance)

    async def warnings() -> list[tuple[bool, bool]]:
        found = [one async for one in examine_relays(bob.home) if one.level is Level.WARNING]
        return [("takes no mail" in one.text, "clock" in one.mend) for one in found if "operator" not in one.mend]

    async with served(bob, Handler().task):
        await wait_until(all_refuse)
        assert await warnings() == 3 * [(True, True)]
        ahead_s = 0
        await wait_until(none_refuses)
        assert await warnings() == []


async def test_a_sender_killed_between_send_and_answer_sends_one_message(
    pair: tuple[Correspondent, Correspondent],
) -> None:
    ada, bob = pair
    async with program(AGENT, ada.home.folder, "hang-after-send", bob.id) as sender:
        await sender.hear("left")
        await sender.kill()
    hers, his = Handler(), Handler()
    async with served(ada, greet, hers.task) as at_adas, served(bob, his.task):
        (row,) = await at_adas.journal.list_tasks(Filter(name="greet"))
        await at_adas.task(row.task_id).result(20)

        async def handled() -> bool:
            return bool(his.seen)

        await wait_until(handled)
    assert [one.body for one in his.seen] == ["hello"]
    assert await mail_of(bob) == [("succeeded", "hello")]


async def test_a_recipient_killed_between_commit_and_acknowledgement_handles_it_once(
    pair: tuple[Correspondent, Correspondent],
) -> None:
    ada, bob = pair
    async with served(ada, greet) as at_adas:
        await (await at_adas.submit(greet, to=bob.id, body="once")).result(20)
    async with program(AGENT, bob.home.folder, "die-before-ack") as recipient:
        assert await recipient.wait_end() == -9
    assert [body for _, body in await mail_of(bob)] == ["once"]
    his = Handler()
    async with served(bob, his.task):
        await asyncio.sleep(2.0)  # time in which the relays deliver it again
    assert await mail_of(bob) == [("succeeded", "once")]
    assert len(his.seen) <= 1


async def test_mail_that_could_not_be_committed_comes_again(
    pair: tuple[Correspondent, Correspondent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken from the relays and not acknowledged: their sessions would give it out no second time."""
    ada, bob = pair
    commit, failed = Intake._commit_letter, list[str]()

    async def fails(self: Intake, delivery: Delivery, letter: holdfast.Letter) -> str:
        if len(failed) < 3:
            failed.append(delivery.id)
            raise JournalStopped("no server answers")
        return await commit(self, delivery, letter)

    monkeypatch.setattr(Intake, "_commit_letter", fails)
    monkeypatch.setattr(mail_job, "AGAIN_S", 0.05)
    his = Handler()
    async with served(ada, greet) as at_adas, served(bob, his.task):
        await (await at_adas.submit(greet, to=bob.id, body="again")).result(20)

        async def handled() -> bool:
            return bool(his.seen)

        await wait_until(handled)
    assert len(failed) == 3
    assert await mail_of(bob) == [("succeeded", "again")]


async def test_mail_arrives_while_a_relay_is_lost(
    pair: tuple[Correspondent, Correspondent], running: list[RelayProcess]
) -> None:
    ada, bob = pair
    his = Handler()
    running[0].kill()
    async with served(ada, greet) as at_adas, served(bob, his.task):
        for number in range(3):
            await (await at_adas.submit(greet, to=bob.id, body=number)).result(30)

        async def handled() -> bool:
            return len(his.seen) == 3

        await wait_until(handled)
    assert sorted(str(one.body) for one in his.seen) == ["0", "1", "2"]


async def test_a_recipient_restored_from_an_older_copy_gets_its_mail_again(
    pair: tuple[Correspondent, Correspondent], tmp_path: Path
) -> None:
    """Held mail: what the restored journal lacks is handled, what it has is not repeated."""
    ada, bob = pair
    journal = bob.home.folder / "journal.db"

    async def take_one(body: str, count: int) -> list[str]:
        his = Handler()
        async with served(ada, greet) as at_adas, served(bob, his.task):
            await (await at_adas.submit(greet, to=bob.id, body=body)).result(20)

            async def handled() -> bool:
                return len(his.seen) == count

            await wait_until(handled)
            await asyncio.sleep(0.5)  # its acknowledgement
        return [str(one.body) for one in his.seen]

    assert await take_one("kept", 1) == ["kept"]
    older = journal.read_bytes()
    assert await take_one("lost", 1) == ["lost"]
    for file in bob.home.folder.glob("journal.db*"):
        file.unlink()
    journal.write_bytes(older)
    journal.chmod(0o600)
    keys = load_or_create(bob.home.keys_file, journal_exists=True, entropy=SystemEntropy())
    await journal_at(bob.home.journal).restore(keys=keys, clock=SystemClock())
    assert sorted(await take_one("new", 2)) == ["lost", "new"]
    assert sorted(await mail_of(bob)) == [("succeeded", "kept"), ("succeeded", "lost"), ("succeeded", "new")]


async def test_new_keys_are_published_before_anything_else_asks_for_them(
    pair: tuple[Correspondent, Correspondent],
) -> None:
    """A recovery voids the profile; without a valid one nobody new can write to the agent."""
    _, bob = pair
    bob.agent.rotate(RotationReason.STOLEN)
    async with served(bob, Handler().task):

        async def published() -> bool:
            held = find_own_profile(bob.home)
            return held is not None and held.record.position == bob.agent.log.position

        await wait_until(published)


async def test_mail_that_waits_at_the_last_relay_is_taken_after_the_agent_has_left_it(
    pair: tuple[Correspondent, Correspondent],
) -> None:
    ada, bob = pair
    async with served(ada, greet) as at_adas:
        await (await at_adas.submit(greet, to=bob.id, body="waits")).result(20)
    await bob.register([])
    his = Handler()
    async with served(bob, his.task):

        async def handled() -> bool:
            return len(his.seen) == 1

        await wait_until(handled)


async def test_mail_that_all_relays_lost_arrives_once_new_relays_are_named(
    pair: tuple[Correspondent, Correspondent], tmp_path: Path
) -> None:
    ada, bob = pair
    with relays(tmp_path, "old1", "old2", "old3") as old:
        await bob.register(old)
        async with served(ada, greet) as at_adas:
            await (await at_adas.submit(greet, to=bob.id, body="survives")).result(20)
        for one in old:
            one.kill()
    his = Handler()
    with relays(tmp_path, "new1", "new2", "new3") as new:
        await bob.register(new)
        address = SCHEME + bob.id + "?" + "&".join(f"r={quote(str(one.at), safe='')}" for one in new)
        async with served(ada, greet) as at_adas, served(bob, his.task):
            assert at_adas.engine is not None
            post = at_adas.engine._post
            assert post is not None
            await post.send(to=address, body="x", key=KEY)  # ada hears of the new relays, as by any later mail
            resender = Resender(journal=at_adas.journal, post=post, log=Log(), first_s=0.0)
            assert await resender.look() == 1

            async def handled() -> bool:
                return len(his.seen) == 2

            await wait_until(handled)
    assert sorted(str(one.body) for one in his.seen) == ["survives", "x"]
