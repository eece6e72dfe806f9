"""`holdfast identity rotate`, `evict` and `retire`: changes of the key log."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.cli.identity.show import report
from holdfast.cli.input.agent_places import witnesses_of
from holdfast.cli.input.input_sheet import Given, read_given
from holdfast.cli.input.input_slots import open_existing
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.screen import talk
from holdfast.core.clock import SystemEntropy
from holdfast.errors import BadInput, BadRecord, VaultMissing
from holdfast.identity.acts.log_act import ActResult, act_lock, open_log_session
from holdfast.identity.acts.paper_acts import find_phrase, lock, retire, unlock
from holdfast.identity.acts.rotate import rotate_identity
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, parse_agent_id
from holdfast.identity.records.records import RotationReason
from holdfast.identity.vault.keyset import KeySet
from holdfast.identity.witness.open_witnesses import open_witnesses
from holdfast.layout.agent_home import AgentHome, home_folder, load_home
from holdfast.layout.moved import check_not_moved


def run_rotate(args: argparse.Namespace) -> int:
    home = load_home(home_folder(args.home))
    why = RotationReason(args.why)
    confirm(
        "rotate",
        f"{home.name} gets new keys in {home.vault} and {home.second}; "
        + (
            "certificates of the old keys end at once"
            if why is RotationReason.STOLEN
            else "certificates of the old keys end within ten minutes"
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
    """Both vaults of the agent, each opened in its own way. Raises MovedAway before it asks."""
    check_not_moved(home.instance)
    if home.vault is None or home.second is None:
        raise VaultMissing(f"{home.settings_file} does not name both a vault and a second place")
    with (
        open_existing(home.vault, "--passphrase-fd", args.passphrase_fd, what="the vault") as vault,
        open_existing(
            home.second, "--second-passphrase-fd", args.second_passphrase_fd, what="the second place"
        ) as second,
    ):
        yield KeySet(ops=vault, nexts=second)


def run_evict(args: argparse.Namespace) -> int:
    home = load_home(home_folder(args.home))
    if not args.paper:
        if args.lock_only or args.words_fd is not None or args.new_witness:
            raise BadInput("--lock-only, --words-fd and --new-witness need --paper")
        confirm(
            "evict",
            f"{home.name} gets new keys, and every certificate of the old keys ends at once. "
            "If the key in the second place may be stolen too, stop and use --paper",
            yes=args.yes,
        )
        report(home, rotate(home, args, RotationReason.STOLEN), as_json=args.json)
        return 0
    what = "it stays locked until you use the words again" if args.lock_only else "then new keys take over here"
    confirm(
        "evict",
        f"{home.name}: a recovery with the recovery words evicts every holder of its keys; {what}",
        yes=args.yes,
    )
    done = _by_paper(home, args, read_given(args))
    report(home, done, as_json=args.json)
    return 0


def _by_paper(home: AgentHome, args: argparse.Namespace, given: Given) -> ActResult:
    log = read_own_log(home.folder, Sodium())
    phrase, change = find_phrase([log], words=given.words, shares=given.shares, passphrase=given.passphrase)
    if change:
        talk(f"corrected a wrong word: {change}; check the sheet")

    named = witnesses_of(args.new_witness)

    async def locked(paper: PaperKeys) -> ActResult:
        session = await open_log_session(home, port=Sodium(), make=named)
        wit = open_witnesses(named, port=Sodium()).keys() if named else None
        return await lock(session, paper, wit=wit)

    with phrase, PaperKeys(phrase, given.passphrase) as paper:
        with act_lock(home.folder):
            done = asyncio.run(locked(paper))  # first, before a vault that may not open
        talk(f"{home.name} is locked: no keys can act for it")
        if args.lock_only:
            return done

        async def unlocked() -> ActResult:
            session = await open_log_session(load_home(home.folder), port=Sodium())
            return await unlock(session, paper, keys, why=RotationReason.STOLEN, entropy=SystemEntropy())

        with opened_keys(home, args) as keys, act_lock(home.folder):
            return asyncio.run(unlocked())


def run_retire(args: argparse.Namespace) -> int:
    home = load_home(home_folder(args.home))
    heir = _heir(args.heir)
    log = read_own_log(home.folder, Sodium())
    if heir == log.id:
        raise BadInput("--heir: an agent cannot be its own heir")
    confirm("retire", f"{home.name} ({log.id}) ends for good; nothing can restore it", yes=args.yes)
    given = read_given(args)
    phrase, _ = find_phrase([log], words=given.words, shares=given.shares, passphrase=given.passphrase)

    async def act(paper: PaperKeys) -> ActResult:
        return await retire(await open_log_session(home, port=Sodium()), paper, heir=heir)

    with phrase, PaperKeys(phrase, given.passphrase) as paper, act_lock(home.folder):
        done = asyncio.run(act(paper))
    report(home, done, as_json=args.json)
    return 0


def _heir(text: str | None) -> AgentId | None:
    if text is None:
        return None
    try:
        return parse_agent_id(text)
    except BadRecord as error:
        raise BadInput(f"--heir: {error.message}") from error
