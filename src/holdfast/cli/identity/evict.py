"""`holdfast identity evict`."""

from __future__ import annotations

import argparse
import asyncio

from holdfast.cli.identity.rotate import opened_keys, rotate
from holdfast.cli.identity.show import report
from holdfast.cli.input.agent_places import witnesses_of
from holdfast.cli.input.confirm import confirm
from holdfast.cli.input.input_sheet import Given, read_given
from holdfast.cli.screen.screen import talk
from holdfast.core.clock import SystemEntropy
from holdfast.errors import BadInput
from holdfast.identity.acts.log_act import ActResult, act_lock, open_log_session
from holdfast.identity.acts.paper_acts import find_phrase, lock, unlock
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.records import RotationReason
from holdfast.identity.witness.open_witnesses import open_witnesses
from holdfast.layout.agent_home import AgentHome, home_folder, load_home


def run(args: argparse.Namespace) -> int:
    home = load_home(home_folder(args.home))
    if not args.paper:
        if args.lock_only or args.words_fd is not None or args.new_witness:
            raise BadInput("--lock-only, --words-fd and --new-witness are for --paper")
        confirm(
            "evict",
            f"{home.name}: new keys, and every certificate of the old ones ends at once. "
            "If the key in the second place may be stolen too, stop and use --paper",
            yes=args.yes,
        )
        report(home, rotate(home, args, RotationReason.STOLEN), as_json=args.json)
        return 0
    what = (
        "nobody can act for it until the words are used again" if args.lock_only else "then fresh keys take over here"
    )
    confirm("evict", f"{home.name}: a recovery by the words on paper evicts everybody; {what}", yes=args.yes)
    done = _by_paper(home, args, read_given(args))
    report(home, done, as_json=args.json)
    return 0


def _by_paper(home: AgentHome, args: argparse.Namespace, given: Given) -> ActResult:
    log = read_own_log(home.folder, Sodium())
    phrase, change = find_phrase([log], words=given.words, shares=given.shares, passphrase=given.passphrase)
    if change:
        talk(f"the words were repaired: {change}; look at the sheet")

    named = witnesses_of(args.new_witness)

    async def locked(paper: PaperKeys) -> ActResult:
        session = await open_log_session(home, port=Sodium(), make=named)
        wit = open_witnesses(named, port=Sodium()).keys() if named else None
        return await lock(session, paper, wit=wit)

    with phrase, PaperKeys(phrase, given.passphrase) as paper:
        with act_lock(home.folder):
            done = asyncio.run(locked(paper))  # first, before a vault that may not open
        talk(f"{home.name} is locked: nobody can act for it")
        if args.lock_only:
            return done

        async def unlocked() -> ActResult:
            session = await open_log_session(load_home(home.folder), port=Sodium())
            return await unlock(session, paper, keys, why=RotationReason.STOLEN, entropy=SystemEntropy())

        with opened_keys(home, args) as keys, act_lock(home.folder):
            return asyncio.run(unlocked())
