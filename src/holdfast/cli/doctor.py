"""`holdfast doctor`: what is wrong here, and the one command that fixes it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_flag, add_options, new_command
from holdfast.cli.input.input_journal import journal_of
from holdfast.cli.screen.screen import finish, one_line, print_json, print_lines
from holdfast.errors import EXIT_JOURNAL

if TYPE_CHECKING:
    from holdfast.app.doctor import Finding
    from holdfast.core.journal_address import JournalAddress
    from holdfast.layout.engine_settings import Settings

EXIT_CLEAN = 0
EXIT_PROBLEMS = 1


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "doctor", run).help("""
        Check this journal, agent and machine, and print the command that fixes each problem. Changes nothing,
        except that it upgrades the schema of an older journal; --install-borg only installs. Exit code 0: no
        problem; 1: something needs you; 6: Holdfast cannot use the journal, its keys or the secrets (damaged,
        missing or not the right ones).
        columns:
          level    ok; note: worth knowing; warning: needs you; damage: start no new work
          check    what was checked
          finding  what was found; below it the command that fixes it
        examples:
          holdfast doctor --home ~/agents/ada
          holdfast doctor --deep --json
        """)
    add_flag(parser, "--deep", "also read and check every record")
    add_flag(parser, "--install-borg", "build Borg, the program for backups, beside this Python; check nothing else")
    add_options(parser, "--journal", "--home", "--json")


def run(args: argparse.Namespace) -> int:
    if args.install_borg:
        from holdfast.backup.open_engine import install_engine

        said = install_engine()
        return finish(args, {"installed": said}, said)
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from holdfast.app.doctor import Level
    from holdfast.layout.settings import find_settings

    address = journal_of(args)
    settings = find_settings(address)
    found: list[Finding] = []
    async for finding in every_finding(address, settings=settings, deep=args.deep):
        found.append(finding)
        if not args.json:
            print_finding(finding)
    levels = {finding.level for finding in found}
    clean = not levels & {Level.WARNING, Level.DAMAGE}
    if args.json:
        print_json({"journal": str(address), "ok": clean, "findings": [asdict(finding) for finding in found]})
    if Level.DAMAGE in levels:
        return EXIT_JOURNAL
    return EXIT_CLEAN if clean else EXIT_PROBLEMS


async def every_finding(address: JournalAddress, *, settings: Settings, deep: bool) -> AsyncIterator[Finding]:
    """About the journal, and about the agent in whose folder it is, if that has an identity. One recovery elsewhere is
    found at each place and at the witnesses: the fix is named once. Of an instance that was locked out that is the only
    advice: nothing else would help there."""
    from dataclasses import replace

    from holdfast.app.doctor import Level, damage, examine, examine_identity
    from holdfast.app.eviction import find_replaced
    from holdfast.app.instances.examine import CHECK, examine_instances, examine_without_identity, judged_hand_over
    from holdfast.app.instances.examine_merges import examine_merges
    from holdfast.app.mail.examine_relays import examine_relays
    from holdfast.layout.agent_home import load_home, peek_home

    async def found() -> AsyncIterator[Finding]:
        async for one in examine(address, settings=settings, deep=deep):
            yield one
        if (address.folder / "identity.json").is_file():
            for look in (examine_identity, examine_relays, examine_instances):
                async for one in look(load_home(address.folder)):
                    yield one
            for one in examine_merges(load_home(address.folder)):
                yield one
        elif address.url:
            async for one in examine_without_identity(address):
                yield one

    home = peek_home(address.folder)
    out = await find_replaced(home) if home is not None and home.roster_file.is_file() else None
    if out is not None:
        yield damage(out.code, out.message, out.hint)
    evicted = out is not None
    async for finding in found():
        if out is not None and (finding.check == CHECK or finding.level in (Level.NOTE, Level.WARNING)):
            continue
        replaced = finding.check == "identity" and finding.level is Level.DAMAGE
        yield replace(finding, mend="") if replaced and evicted else judged_hand_over(home, finding)
        evicted = evicted or replaced


def print_finding(finding: Finding) -> None:
    print_lines(f"{finding.level:<8} {finding.check:<10}  {one_line(finding.text, chars_max=1_000)}")
    if finding.mend:
        print_lines(f"{'':<8} {'':<10}  fix: {one_line(finding.mend, chars_max=1_000)}")
