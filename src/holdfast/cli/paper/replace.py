"""`holdfast paper replace`: new words, named by the old ones."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack
from pathlib import Path

from holdfast.cli.command import acting_home
from holdfast.cli.identity.show import report
from holdfast.cli.identity.tell_places import tell_places
from holdfast.cli.input.input_sheet import read_given
from holdfast.cli.input.input_slots import read_line
from holdfast.cli.input.terminal import ask_hidden, ask_sheet, confirm, read_words
from holdfast.cli.screen.output_words import words_out
from holdfast.cli.screen.screen import talk
from holdfast.core.clock import SystemEntropy
from holdfast.errors import BadInput, VaultMissing
from holdfast.identity.acts.log_act import ActResult, act_lock, open_log_session
from holdfast.identity.acts.make_agent import open_by
from holdfast.identity.acts.paper_acts import find_phrase, is_under_way, replace_paper
from holdfast.identity.acts.paper_sheets import mark_revoked, open_paper, today
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase, new_phrase, read_phrase
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.slots import UnlockKey, find_unattended, passphrase_key, ways_in
from holdfast.identity.vault.vault import Vault, read_slots
from holdfast.layout.agent_home import AgentHome

ENTROPY = SystemEntropy()


def run(args: argparse.Namespace) -> int:
    home = acting_home(args)
    what = f"{home.name} gets new recovery words; the old ones become invalid, and every running copy is evicted"
    confirm("replace", what, yes=args.yes)
    given = read_given(args)
    log = read_own_log(home.folder, Sodium())
    phrase, change = find_phrase([log], words=given.words, shares=given.shares, passphrase=given.passphrase)
    if change:
        talk(f"corrected a wrong word: {change}")
    with ExitStack() as stack:
        stack.enter_context(phrase)
        old = stack.enter_context(PaperKeys(phrase, given.passphrase))
        vaults = _opened(home, args, stack)
        stack.enter_context(act_lock(home.folder))
        new = stack.enter_context(PaperKeys(stack.enter_context(_new_words(home, args, old))))
        done = asyncio.run(_replaced(home, old, new, *vaults))
    _revoke_all(home)
    tell_places(home, done.log)
    report(home, done, as_json=args.json)
    talk(
        "next: print the new words (`holdfast paper print | lp`), check the sheet (`holdfast paper verify`), and print "
        "a new card (`holdfast paper card | lp`). Destroy the old sheets. The old words still open old copies of "
        "backups: if another person may have both, replace the passwords and tokens in those copies"
    )
    return 0


def _new_words(home: AgentHome, args: argparse.Namespace, old: PaperKeys) -> Phrase:
    """New words, shown; after an interrupted run, the ones that it showed."""
    session = asyncio.run(open_log_session(home, port=Sodium()))
    if is_under_way(session, old):
        talk("an earlier run was interrupted: type the new words that it showed")
        if args.again_fd is not None:
            return read_phrase(read_words(args.again_fd, "--again-fd"))
        return read_phrase(ask_sheet("the 24 new words", "--again-fd"))
    if args.again_fd is not None:
        raise BadInput("--again-fd: there is no interrupted run")
    show = words_out(args.new_words_fd, home.name)
    made = new_phrase(ENTROPY)
    show(made)
    return made


Opened = tuple[Vault, list[UnlockKey]]


def _opened(home: AgentHome, args: argparse.Namespace, stack: ExitStack) -> tuple[Opened, Opened]:
    """Vault and second place, each with every key that opens it, before any word is shown."""
    if home.vault is None or home.second is None:
        raise VaultMissing(f"{home.settings_file} must have the settings `vault` and `second` under [identity]")
    found: list[Opened] = []
    for folder, option, fd, what in (
        (home.vault, "--passphrase-fd", args.passphrase_fd, "the vault"),
        (home.second, "--second-passphrase-fd", args.second_passphrase_fd, "the second place"),
    ):
        ways = _ways(folder, option, fd, what=what)
        vault = stack.enter_context(open_by(folder, ways))
        vault.check_ways(ways)
        found.append((vault, ways))
    return found[0], found[1]


async def _replaced(home: AgentHome, old: PaperKeys, new: PaperKeys, first: Opened, second: Opened) -> ActResult:
    return await replace_paper(
        await open_log_session(home, port=Sodium()),
        old,
        new,
        first[0],
        second[0],
        ways=first[1],
        second_ways=second[1],
        entropy=ENTROPY,
    )


def _ways(folder: Path, option: str, fd: str | None, *, what: str) -> list[UnlockKey]:
    """Every key that opens it: from this machine, as given, or as a person types it."""
    slots = read_slots(folder)
    ways = find_unattended(slots)
    if fd is not None:
        ways.append(passphrase_key(read_line(option, fd)))
    elif any(slot.kind == "passphrase" for slot in slots):
        asked = ask_hidden(f"passphrase of {what}", for_what=f"the passphrase of {what}", hint=f"give {option} N")
        ways.append(passphrase_key(asked))
    if not ways:
        raise BadInput(
            f"Holdfast found no unlock file, credential or passphrase for {what} ({folder})", hint=ways_in(slots)
        )
    return ways


def _revoke_all(home: AgentHome) -> None:
    session = open_paper(home.folder)
    numbers = [one.number for one in session.register.current()]
    if numbers:
        mark_revoked(session, numbers, date=today())
