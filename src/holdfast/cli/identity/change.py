"""`holdfast identity rotate`, `evict`, `recover` and `retire`: changes of the key log."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from holdfast.cli.command import acting_home
from holdfast.cli.identity.show import report
from holdfast.cli.identity.tell_places import tell_places
from holdfast.cli.input.agent_places import (
    default_place,
    path_of,
    read_card_files,
    read_file,
    read_log_file,
    second_place,
    witnesses_of,
)
from holdfast.cli.input.input_sheet import Given, read_given
from holdfast.cli.input.input_slots import new_slots, open_existing
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.screen import talk
from holdfast.core.clock import SystemEntropy
from holdfast.errors import BadInput, BadRecord, VaultMissing
from holdfast.identity.acts.log_act import ActResult, act_lock, open_log_session, rotate_identity
from holdfast.identity.acts.paper_acts import find_phrase, lock, retire, unlock
from holdfast.identity.acts.recover_identity import RecoveryOrder, RecoveryPreview, recover_identity
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.log.log_state import LogStanding
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, parse_agent_id
from holdfast.identity.records.records import RotationReason
from holdfast.identity.vault.age import FILE_BYTES_MAX
from holdfast.identity.vault.keyset import KeySet
from holdfast.identity.witness.open_witnesses import open_witnesses
from holdfast.layout.agent_home import AgentHome, home_folder, load_home, root_folder
from holdfast.layout.moved import check_not_moved
from holdfast.layout.witness_address import WitnessAddress, folders_of
from holdfast.recovery.recover_target import check_outside, check_target


def run_rotate(args: argparse.Namespace) -> int:
    home = acting_home(args)
    why = RotationReason(args.why)
    end = "at once" if why is RotationReason.STOLEN else "within ten minutes"
    what = f"{home.name} gets new keys in {home.vault} and {home.second}; certificates of the old keys end {end}"
    confirm("rotate", what, yes=args.yes)
    done = rotate(home, args, why, named=witnesses_of(args.witness, args.invite))
    report(load_home(home.folder), done, as_json=args.json)
    return 0


def rotate(
    home: AgentHome, args: argparse.Namespace, why: RotationReason, named: Sequence[WitnessAddress] = ()
) -> ActResult:
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
        raise VaultMissing(f"{home.settings_file} must have the settings `vault` and `second` under [identity]")
    with (
        open_existing(home.vault, "--passphrase-fd", args.passphrase_fd, what="the vault") as vault,
        open_existing(
            home.second, "--second-passphrase-fd", args.second_passphrase_fd, what="the second place"
        ) as second,
    ):
        yield KeySet(ops=vault, nexts=second)


def run_evict(args: argparse.Namespace) -> int:
    home = acting_home(args)
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
    what = f"{home.name}: a recovery with the recovery words evicts every holder of its keys; {what}"
    confirm("evict", what, yes=args.yes)
    done = _by_paper(home, args, read_given(args))
    tell_places(home, done.log)
    report(home, done, as_json=args.json)
    return 0


def _by_paper(home: AgentHome, args: argparse.Namespace, given: Given) -> ActResult:
    log = read_own_log(home.folder, Sodium())
    phrase, change = find_phrase([log], words=given.words, shares=given.shares, passphrase=given.passphrase)
    if change:
        talk(f"corrected a wrong word: {change}; check the sheet")

    named = witnesses_of(args.new_witness, args.invite)

    async def locked(paper: PaperKeys) -> ActResult:
        session = await open_log_session(home, port=Sodium(), make=named)
        wit = open_witnesses(named, port=Sodium()).keys() if named else None
        return await lock(session, paper, wit=wit)

    with phrase, PaperKeys(phrase, given.passphrase) as paper:
        with act_lock(home.folder):
            done = asyncio.run(locked(paper))  # first, before a vault that may not open
        if args.lock_only:
            talk(f"{home.name} is locked: none of its keys is valid any more")
            return done
        talk(f"none of the old keys of {home.name} is valid any more; now new keys take over")

        async def unlocked() -> ActResult:
            session = await open_log_session(load_home(home.folder), port=Sodium())
            return await unlock(session, paper, keys, why=RotationReason.STOLEN, entropy=SystemEntropy())

        with opened_keys(home, args) as keys, act_lock(home.folder):
            return asyncio.run(unlocked())


def run_retire(args: argparse.Namespace) -> int:
    home = acting_home(args)
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


def run_recover(args: argparse.Namespace) -> int:
    folder = home_folder(args.home)
    known = load_home(folder) if os.path.lexists(folder / "holdfast.toml") else None
    name = args.name or (known.name if known else folder.name.lower())
    vault = path_of(args.vault) if args.vault else ((known.vault if known else None) or default_place("vault", name))
    given_second = args.second or (str(known.second) if known and known.second else None)
    check_target(root_folder(args.home), name=name)
    second = second_place(given_second, vault, name)
    check_outside(folder, [vault, second, *folders_of(witnesses_of(args.new_witness))])
    order = RecoveryOrder(
        folder=folder,
        vault=vault,
        second=second,
        name=name,
        keys=(),
        second_keys=(),
        copies=(*read_card_files(args.card), *(read_log_file(path_of(one)) for one in args.log)),
        witnesses=witnesses_of(args.witness),
        new_witnesses=witnesses_of(args.new_witness, args.invite),
        id=args.id,
        escrow=read_file(path_of(args.escrow), FILE_BYTES_MAX) if args.escrow is not None else None,
        again=args.again,
    )
    given = read_given(args)
    keys, second_keys = new_slots(args)
    order = dataclasses.replace(order, keys=keys, second_keys=second_keys, passphrase=given.passphrase)
    done = asyncio.run(
        recover_identity(
            order,
            words=given.words,
            shares=given.shares,
            entropy=SystemEntropy(),
            port=Sodium(),
            confirm=lambda look: _ask_recover(look, name, yes=args.yes),
        )
    )
    talk(f"{name} is recovered with the same id; its key log is at {done.log.position}")
    for one in done.lost:
        talk(f"lost: {one}")
    talk("the words were typed on this machine: if it has a network, run `holdfast paper replace` soon")
    result = ActResult(log=done.log, receipts=len(done.log.head.receipts), refused=done.refused)
    report(done.home, result, as_json=args.json)
    return 0


def _ask_recover(look: RecoveryPreview, name: str, *, yes: bool) -> None:
    log = look.log
    talk(f"the words belong to {log.id}" + (f" ({look.change}: check the sheet)" if look.change else ""))
    talk(f"identity: {log.standing.value}, key log at {log.position}; witnesses that answered: {look.answered}")
    for place, why in look.gone.items():
        talk(f"witness {place}: {why}")
    if not look.escrow:
        talk("no escrow.age was given: Holdfast makes new keys for journal, effects and backups")
    evicts = "" if log.standing is LogStanding.LOCKED else "holders of the old keys are locked out, and "
    confirm("recover", f"{name}: {evicts}new keys take over here", yes=yes)
