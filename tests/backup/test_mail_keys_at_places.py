"""A new mail key is published when every place has it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.app.mail.profile_job import is_profile_due, renew_profile
from holdfast.app.mail.shared_keys import find_copied, mail_speaker
from holdfast.backup.backups import open_backups
from holdfast.backup.places.backup_places import states_of
from holdfast.cli.main import main
from holdfast.core.clock import SystemEntropy
from holdfast.identity.statements.statements import Profile
from holdfast.identity.vault.mail_keys import RENEW_S, SETTLE_S, USE_S, renewed_mail_keys
from holdfast.identity.vault.vault import Vault, open_vault
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast_proofs.backup_lab.world import World
from holdfast_proofs.support.relays import relays


def test_a_profile_names_a_new_mail_key_when_every_place_has_it(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home, entropy, now = load_home(world.home.folder), SystemEntropy(), int(time.time())
    vault = _vault(home)
    (first,) = renewed_mail_keys(vault, entropy, now=now - RENEW_S - 60)
    with relays(tmp_path_factory.mktemp("relays"), "r") as (relay,):
        assert find_copied(home) == 0
        assert main(["relay", "add", relay.address, "--home", str(home.folder)]) == 0
        second = max(renewed_mail_keys(vault, entropy, now=now), key=lambda one: one.exp)
        assert second.kid != first.kid
        held = _renewed(home)
        assert [one.kid for one in held.enc] == [first.kid]
        assert {one.kid: one.copied for one in mail_speaker(home).mail_keys()} == {first.kid: False, second.kid: False}
        assert not is_profile_due(home)
        assert _renewed(home).ver == held.ver, "the wait signs no new versions"

        away = world.place(2).rename(world.root / "away")
        _back_up(home, "place-1")
        assert not is_profile_due(home), "one of two places has it"
        away.rename(world.place(2))
        _back_up(home)
        assert find_copied(home) == second.exp
        assert is_profile_due(home)
        assert [one.kid for one in _renewed(home).enc] == [second.kid, first.kid]
        assert not is_profile_due(home)


def test_a_mail_key_is_published_without_the_places_when_the_one_before_ends_soon(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home, entropy, now = load_home(world.home.folder), SystemEntropy(), int(time.time())
    vault = _vault(home)
    (first,) = renewed_mail_keys(vault, entropy, now=now - (USE_S - SETTLE_S) - 60)
    with relays(tmp_path_factory.mktemp("relays"), "r") as (relay,):
        assert main(["relay", "add", relay.address, "--home", str(home.folder)]) == 0
        second = renewed_mail_keys(vault, entropy, now=now)[0]
        assert [one.kid for one in _renewed(home).enc] == [second.kid, first.kid]
        assert not is_profile_due(home)


def test_a_state_file_that_cannot_be_read_hides_no_mail_key(world: World) -> None:
    home = load_home(world.home.folder)
    (key,) = renewed_mail_keys(_vault(home), SystemEntropy(), now=int(time.time()))
    states_of(home).change("place-1", lambda one: msgspec.structs.replace(one, mail_key_exp=key.exp))
    path = next(Path(home.folder).rglob("place_state.json"))
    path.write_text("{")
    assert find_copied(home) == 0
    assert [one.kid for one in mail_speaker(home).mail_keys()] == [key.kid]


def _vault(home: AgentHome) -> Vault:
    assert home.vault is not None
    return open_vault(home.vault)


def _renewed(home: AgentHome) -> Profile:
    done = renew_profile(home)
    assert done.signed is not None
    return done.signed.record


def _back_up(home: AgentHome, *places: str) -> None:
    async def back_up() -> bool:
        return (await (await open_backups(home)).now(places)).good

    assert asyncio.run(back_up())
