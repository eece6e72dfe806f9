"""`holdfast identity recover`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
from pathlib import Path

from holdfast.cli.identity.show import report
from holdfast.cli.input.agent_places import default_place, path_of, second_place, witnesses_of
from holdfast.cli.input.confirm import confirm
from holdfast.cli.input.input_log import read_card_file, read_log_file
from holdfast.cli.input.input_sheet import read_given
from holdfast.cli.input.input_slots import new_slots
from holdfast.cli.screen.screen import talk
from holdfast.core.clock import SystemEntropy
from holdfast.errors import BadInput
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
        escrow=_bytes(args.escrow),
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
    talk(f"{name} is back: the same id, at {tuple(done.log.position)}")
    for one in done.lost:
        talk(f"lost: {one}")
    talk("the words were typed on this machine: if it has a network, print a new sheet soon")
    report(
        done.home,
        ActResult(log=done.log, receipts=len(done.log.head.receipts), refused=done.refused),
        as_json=args.json,
    )
    return 0


def _ask(look: RecoveryPreview, name: str, *, yes: bool) -> None:
    log = look.log
    talk(f"the words are those of {log.id}" + (f" ({look.change}: look at the sheet)" if look.change else ""))
    talk(f"its log stands at {tuple(log.position)}, {log.standing.value}; {look.answered} witnesses answer")
    for place, why in look.gone.items():
        talk(f"witness {place}: {why}")
    if not look.escrow:
        talk("no escrow.age was given: the keys of journal, effects and backups will be new")
    evicts = "" if log.standing is LogStanding.LOCKED else "whoever holds its keys is evicted, and "
    confirm("recover", f"{name}: {evicts}fresh keys take over here", yes=yes)


def _bytes(given: str | None) -> bytes | None:
    if given is None:
        return None
    path = path_of(given)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadInput(f"--escrow: {given!r} cannot be read: {error.strerror}") from error
    if len(raw) > FILE_BYTES_MAX:
        raise BadInput(f"--escrow: {given!r} is larger than an escrow")
    return raw
