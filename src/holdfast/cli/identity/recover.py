"""`holdfast identity recover`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os

from holdfast.cli.identity.show import report
from holdfast.cli.input.agent_places import default_place, path_of, second_place, witnesses_of
from holdfast.cli.input.input_log import read_card_file, read_file, read_log_file
from holdfast.cli.input.input_sheet import read_given
from holdfast.cli.input.input_slots import new_slots
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.screen import talk
from holdfast.core.clock import SystemEntropy
from holdfast.identity.acts.log_act import ActResult
from holdfast.identity.acts.recover_identity import RecoveryOrder, RecoveryPreview, recover_identity
from holdfast.identity.log.log_state import LogStanding
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.age import FILE_BYTES_MAX
from holdfast.layout.agent_home import home_folder, load_home


def run(args: argparse.Namespace) -> int:
    folder = home_folder(args.home)
    known = load_home(folder) if os.path.lexists(folder / "holdfast.toml") else None
    name = args.name or (known.name if known else folder.name.lower())
    vault = path_of(args.vault) if args.vault else ((known.vault if known else None) or default_place("vault", name))
    given_second = args.second or (str(known.second) if known and known.second else None)
    order = RecoveryOrder(
        folder=folder,
        vault=vault,
        second=second_place(given_second, vault, name),
        name=name,
        keys=(),
        second_keys=(),
        copies=tuple(
            [read_card_file(path_of(one)) for one in args.card] + [read_log_file(path_of(one)) for one in args.log]
        ),
        witnesses=witnesses_of(args.witness),
        new_witnesses=witnesses_of(args.new_witness),
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
            confirm=lambda look: _ask(look, name, yes=args.yes),
        )
    )
    talk(f"{name} is recovered with the same id; its key log is at {done.log.position}")
    for one in done.lost:
        talk(f"lost: {one}")
    talk("the words were typed on this machine: if it has a network, run `holdfast paper replace` soon")
    report(
        done.home,
        ActResult(log=done.log, receipts=len(done.log.head.receipts), refused=done.refused),
        as_json=args.json,
    )
    return 0


def _ask(look: RecoveryPreview, name: str, *, yes: bool) -> None:
    log = look.log
    talk(f"the words belong to {log.id}" + (f" ({look.change}: check the sheet)" if look.change else ""))
    talk(f"identity: {log.standing.value}, key log at {log.position}; {look.answered} witnesses answered")
    for place, why in look.gone.items():
        talk(f"witness {place}: {why}")
    if not look.escrow:
        talk("no escrow.age was given: Holdfast makes new keys for journal, effects and backups")
    evicts = "" if log.standing is LogStanding.LOCKED else "holders of the old keys are locked out, and "
    confirm("recover", f"{name}: {evicts}new keys take over here", yes=yes)
