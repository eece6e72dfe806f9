"""Mail of an agent on several hosts that share a journal in PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.mail import profile_job
from holdfast.app.mail.held_mail import Received
from holdfast.app.mail.mail_job import _my_turn, find_secured
from holdfast.app.mail.profile_job import renew_profile
from holdfast.app.mail.shared_keys import NAME, with_shared_keys
from holdfast.core.clock import SystemClock
from holdfast.identity.journal_keys.vault_keys import point_keys
from holdfast.identity.speaker.open_speaker import open_speaker
from holdfast.identity.vault.vault import open_vault
from holdfast.journal.bind import journal_at
from holdfast.journal.durability import Kept
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.relay.client.profile import PublishedProfile
from holdfast.testing.lab import wait_until
from holdfast_proofs.support.postgres import STANDBY, find_oldest, standby_of, started

OpenJournal = Callable[..., Awaitable[PostgresJournal]]


async def test_one_of_several_hosts_takes_mail_in(agent: AgentHome, second_host: Callable[..., AgentHome]) -> None:
    other = second_host()
    async with _my_turn(agent) as first, _my_turn(other) as second:
        assert (first, second) == (True, False)
    async with _my_turn(other) as second, _my_turn(agent) as first:
        assert (second, first) == (True, False)


def test_hosts_take_turns_to_renew_the_profile(
    agent: AgentHome, second_host: Callable[..., AgentHome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both sign the same version, each with its own newest mail key."""
    busy, most, lock = 0, 0, threading.Lock()

    async def publish(*_args: Any, **_options: Any) -> PublishedProfile:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        await asyncio.sleep(0.3)
        with lock:
            busy -= 1
        return PublishedProfile(signed=None)

    monkeypatch.setattr(profile_job, "publish_profile", publish)
    homes = [agent, second_host()]
    with ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(renew_profile, homes))) == 2
    assert most == 1


def test_every_host_opens_mail_that_was_sealed_for_the_key_of_another(
    agent: AgentHome, second_host: Callable[..., AgentHome], tmp_path: Path
) -> None:
    """Each host has a vault of its own, and makes a mail key of its own."""
    other = second_host()
    vault = shutil.copytree(tmp_path / "machine/vault", tmp_path / "vault-2")
    with open_vault(vault) as opened:
        point_keys(other.folder / "keys.json", opened)
    path = other.folder / "holdfast.toml"
    path.write_text(path.read_text().replace(str(tmp_path / "machine/vault"), str(vault)))
    speakers = [open_speaker(load_home(one.folder), SystemClock()) for one in (agent, other)]
    alone = [one.mail_keys() for one in speakers]
    assert [len(keys) for keys in alone] == [1, 1]
    assert alone[0] != alone[1]
    with_shared_keys(agent, speakers[0]).mail_keys()
    shared = [with_shared_keys(agent, one).mail_keys() for one in reversed(speakers)]
    assert shared[0] == shared[1]
    assert set(shared[0]) == {*alone[0], *alone[1]}
    with_shared = journal_at(agent.journal).find_shared()
    assert with_shared is not None
    text = with_shared.read_text(NAME)
    assert alone[0][0].private.hex() not in text
    with_shared.change_text(NAME, lambda _: "broken")
    assert with_shared_keys(agent, speakers[0]).mail_keys() == alone[0]


async def test_mail_is_secured_at_once_where_a_synchronous_standby_has_it(
    agent: AgentHome, open_it: OpenJournal
) -> None:
    received = [Received(at_s=100.0, mark=7)]
    with started(find_oldest()) as primary, standby_of(primary):
        async with asyncio.timeout(60):
            journal = await open_it(place=PostgresPlace.read(primary.url()))
            assert await find_secured(agent, journal, received, now_s=100.0) == 0
            primary.configure({"synchronous_standby_names": f"'{STANDBY}'"})
            primary.reload()

            async def is_kept() -> bool:
                return (await journal.find_durability()).kept is Kept.STANDBY

            await wait_until(is_kept)
            assert await find_secured(agent, journal, received, now_s=100.0) == 7
