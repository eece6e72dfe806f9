"""`holdfast backup`: make, list and test snapshots of an agent."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli.backup.upkeep import add_upkeep
from holdfast.cli.command import Commands, add_flag, add_options, new_noun, new_verb
from holdfast.cli.screen.screen import clock_time, print_json, print_table, talk
from holdfast.cli.signals import run_async
from holdfast.errors import SnapshotsMissing

if TYPE_CHECKING:
    from holdfast.backup.backups import Backups
    from holdfast.backup.engine import Progress as ProgressPort
    from holdfast.backup.report import ListReport, PlaceResult, PlaceShape


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "backup").help("""
        Snapshots of an agent in its places. A new snapshot is not yet a backup: it counts after Holdfast has
        restored it for a test and compared every byte with the signed manifest.
        examples:
          holdfast backup now
          holdfast backup list
          holdfast backup verify
        """)
    parser = new_verb(verbs, "now", run_now).help("""make a snapshot in every place, and test it

        Make a snapshot of the agent in every place at once, and restore it for a test from each. The agent may
        continue to work. Each place has its own result; a place that fails does not stop the others.
        columns:
          place     where
          made      whether the snapshot was stored
          verified  whether a test restore was identical
          stored    new bytes in the repository
          result    ok, or what went wrong
        examples:
          holdfast backup now
          holdfast backup now nas --json
        """)
    parser.add_argument("place", metavar="PLACE", nargs="*", help="only these places (default: all)")
    add_flag(parser, "--no-verify", "do not test it; it does not count as verified")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "list", run_list).help("""which snapshots exist, where, and how old

        Look into every place: its newest snapshot, how far it is behind the newest one that any place knows of, and
        when a snapshot was last made and last verified there. Also finds a repository that was rolled back to an
        older state.
        columns:
          place          where
          newest         number of its newest snapshot
          behind         snapshots, steps and seconds behind the newest known snapshot
          last backup    when a snapshot was last made there
          last verified  when a snapshot was last restored for a test
          result         of the last run; or why the place cannot be read
        examples:
          holdfast backup list
          holdfast backup list --snapshots --json
        """)
    add_flag(parser, "--snapshots", "show every snapshot")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "verify", run_verify).help("""restore a snapshot for a test

        Restore the newest snapshot of every place into a scratch folder, without using anything stored on this
        machine. Compare all of it with the signed manifest, and check the journal in it. Does not change the agent.
        columns:
          place     where
          snapshot  which one
          verified  whether it is identical to what was signed
          seconds   how long it took
          result    ok, or what is wrong
        examples:
          holdfast backup verify
          holdfast backup verify nas --json
        """)
    parser.add_argument("place", metavar="PLACE", nargs="*", help="only these places (default: all)")
    parser.add_argument("--snapshot", metavar="NAME", default="", help="this snapshot (default: the newest)")
    add_options(parser, "--home", "--json")
    add_upkeep(verbs)


def run_now(args: argparse.Namespace) -> int:
    import msgspec

    from holdfast.cli.screen.progress import Progress

    async def work() -> int:
        with Progress() as news:
            backups = await _opened(args, news)
            report = await backups.now(args.place, check=not args.no_verify)
        await _tell_warning(backups)
        if args.json:
            print_json(msgspec.to_builtins(report))
            return _exit_code(report.places)
        made = report.snapshot
        talk(f"{made.archive}: {made.files:,} files, {made.bytes:,} bytes in {report.seconds:g} s")
        for note in made.notes:
            if not note.text.startswith("left out"):
                talk(f"note: {note.path}: {note.text}")
        rows = [
            (one.place, _yes(one.made), _yes(one.verified), f"{one.stored_bytes:,}", _result(one))
            for one in report.places
        ]
        print_table(("place", "made", "verified", "stored", "result"), rows, empty="there is no place", state="result")
        _print_hints(report.places)
        for one in report.warnings:
            talk(f"WARNING: {one.message}\nhint: {one.hint}")
        return _exit_code(report.places)

    return run_async(work())


async def _tell_warning(backups: Backups) -> None:
    from holdfast.app.notify import make_notices
    from holdfast.backup.upkeep.scheduled import notify_warning
    from holdfast.core.clock import SystemClock
    from holdfast.layout.settings import find_settings

    notices = make_notices(find_settings(backups.home.journal))
    await notify_warning(backups.home, clock=SystemClock(), notices=notices)


def run_list(args: argparse.Namespace) -> int:
    import msgspec

    from holdfast.backup.report import list_report
    from holdfast.cli.screen.progress import Progress

    async def work() -> int:
        with Progress() as news:
            backups = await _opened(args, news)
            found = await backups.look()
        report = list_report(backups.home.name, found, backups.states())
        if args.json:
            print_json(msgspec.to_builtins(report))
            return 0
        _print_places(report)
        if args.snapshots:
            _print_snapshots(report)
        for text in report.findings:
            talk(f"warning: {text}")
        for place in report.places:
            for text in place.findings:
                talk(f"warning: {place.place}: {text}")
            if place.missing:
                talk(f"WARNING: {place.place}: {place.message}")
                talk(f"hint: {place.place}: {SnapshotsMissing.default_hint}")
            if place.behind is not None:
                talk(
                    f"warning: {place.place} is behind the newest known snapshot: its repository "
                    "was rolled back, or the last snapshot did not reach it"
                )
        return 0

    return run_async(work())


def run_verify(args: argparse.Namespace) -> int:
    import msgspec

    from holdfast.cli.screen.progress import Progress

    async def work() -> int:
        with Progress() as news:
            backups = await _opened(args, news)
            report = await backups.verify(args.place, archive=args.snapshot)
        if args.json:
            print_json(msgspec.to_builtins(report))
            return _exit_code(report.places)
        rows = [
            (one.place, one.archive, _yes(one.verified), f"{one.verify_s:.1f}", _result(one)) for one in report.places
        ]
        print_table(
            ("place", "snapshot", "verified", "seconds", "result"), rows, empty="there is no place", state="result"
        )
        _print_hints(report.places)
        for text in report.findings:
            talk(f"warning: {text}")
        return _exit_code(report.places)

    return run_async(work())


async def _opened(args: argparse.Namespace, news: ProgressPort) -> Backups:
    from holdfast.backup.backups import open_backups
    from holdfast.layout.agent_home import home_folder, load_home

    return await open_backups(load_home(home_folder(args.home)), progress=news)


def _print_places(report: ListReport) -> None:
    rows = [
        (
            one.place,
            "-" if one.newest is None else str(one.newest),
            _behind(one),
            _when(one.last_backup),
            _when(one.last_verified),
            one.error or (f"{one.result}: {one.message}" if one.message else one.result),
        )
        for one in report.places
    ]
    print_table(
        ("place", "newest", "behind", "last backup", "last verified", "result"),
        rows,
        empty="no places yet; `holdfast place add NAME FOLDER` adds one",
        state="result",
    )


def _print_snapshots(report: ListReport) -> None:
    rows = [
        (
            str(one.seq),
            one.archive,
            _when(one.at),
            f"{one.files:,}",
            f"{one.bytes:,}",
            ", ".join(one.places) or "nowhere",
        )
        for one in report.snapshots
    ]
    print_table(("number", "snapshot", "made", "files", "bytes", "places"), rows, empty="no snapshots yet")


def _when(unix_s: int) -> str:
    return clock_time(unix_s * 1000) if unix_s else "never"


def _behind(one: PlaceShape) -> str:
    if one.behind is None:
        return "-"
    steps = "" if one.behind.steps is None else f", {one.behind.steps:,} steps"
    return f"{one.behind.generations}{steps}, {one.behind.seconds:,} s"


def _result(one: PlaceResult) -> str:
    return f"{one.error}: {one.message}" if one.error else "ok"


def _print_hints(results: Sequence[PlaceResult]) -> None:
    """What to do about each place that failed; the table may have cut its message."""
    for one in results:
        if one.error:
            talk(f"{one.place}: {one.message}")
            if one.hint:
                talk(f"hint: {one.place}: {one.hint}")


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def _exit_code(results: tuple[PlaceResult, ...]) -> int:
    return max((one.exit_code for one in results), default=0)
