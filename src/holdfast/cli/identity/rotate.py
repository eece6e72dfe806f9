"""`holdfast identity rotate`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.cli.identity.show import report
from holdfast.cli.input.agent_places import witnesses_of
from holdfast.cli.input.confirm import confirm
from holdfast.cli.input.input_slots import open_existing
from holdfast.core.clock import SystemEntropy
from holdfast.errors import VaultMissing
from holdfast.identity.acts.log_act import ActResult, act_lock, open_log_session
from holdfast.identity.acts.rotate import rotate_identity
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.records import RotationReason
from holdfast.identity.vault.keyset import KeySet
from holdfast.identity.witness.open_witnesses import open_witnesses
from holdfast.layout.agent_home import AgentHome, home_folder, load_home
from holdfast.layout.moved import check_not_moved


def run(args: argparse.Namespace) -> int:
    home = load_home(home_folder(args.home))
    why = RotationReason(args.why)
    confirm(
        "rotate",
        f"{home.name} gets new keys in {home.vault} and {home.second}; "
        + (
            "certificates of the old ones end at once"
            if why is RotationReason.STOLEN
            else "certificates of the old ones end within ten minutes"
        ),
        yes=args.yes,
    )
    done = rotate(home, args, why, witnesses=args.witness)
    report(load_home(home.folder), done, as_json=args.json)
    return 0


def rotate(
    home: AgentHome, args: argparse.Namespace, why: RotationReason, witnesses: list[str] | None = None
) -> ActResult:
    named = witnesses_of(witnesses or ())

    async def act(keys: KeySet) -> ActResult:
        session = await open_log_session(home, port=Sodium(), make=named)
        wit = open_witnesses(named, port=Sodium()).keys() if named else None
        return await rotate_identity(session, keys, why=why, entropy=SystemEntropy(), wit=wit)

    with opened_keys(home, args) as keys, act_lock(home.folder):
        return asyncio.run(act(keys))


@contextmanager
def opened_keys(home: AgentHome, args: argparse.Namespace) -> Generator[KeySet]:
    """Both vaults of the agent, each by its own way in. Raises MovedAway before it asks."""
    check_not_moved(home.instance)
    if home.vault is None or home.second is None:
        raise VaultMissing(f"{home.settings_file} names no vault and second place")
    with (
        open_existing(home.vault, "--passphrase-fd", args.passphrase_fd, what="the vault") as vault,
        open_existing(
            home.second, "--second-passphrase-fd", args.second_passphrase_fd, what="the second place"
        ) as second,
    ):
        yield KeySet(ops=vault, nexts=second)
