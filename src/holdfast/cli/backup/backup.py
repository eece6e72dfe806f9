"""`holdfast backup`: snapshots of an agent, made, listed and restored for a test."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli.backup.upkeep import add_upkeep
from holdfast.cli.command import Commands, add_home_option, add_json_option, add_verbs, new_command
from holdfast.cli.signals import run_async

if TYPE_CHECKING:
    from holdfast.backup.backups import Backups
    from holdfast.backup.progress import Progress as ProgressPort
    from holdfast.backup.report import ListReport, PlaceResult, PlaceShape


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "backup",
        run=None,
        purpose="Snapshots of an agent in its places. A snapshot that was made is not yet a "
        "backup: it counts when it was restored for a test and every byte was compared with its "
        "signed manifest.",
        examples=("holdfast backup now", "holdfast backup list", "holdfast backup verify"),
    )
    verbs = add_verbs(parser)
    _add_now(verbs)
    _add_list(verbs)
    _add_verify(verbs)
    add_upkeep(verbs)


def _add_now(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "now",
        run=run_now,
        summary="make a snapshot in every place, and test it",
        purpose="Make a snapshot of the agent as it is now, in every place at once, and restore "
        "it for a test from each. The agent may go on working. Each place has its own result; "
        "one that fails stops no other.",
        columns=(
            ("place", "where"),
            ("made", "whether the snapshot is there"),
            ("verified", "whether it was restored for a test and compared"),
            ("stored", "new bytes in the repository"),
            ("result", "ok, or what went wrong"),
        ),
        examples=("holdfast backup now", "holdfast backup now nas --json"),
    )
    parser.add_argument("place", nargs="*", help="these places alone (default: all)")
    parser.add_argument("--no-verify", action="store_true", help="make it only; it does not count as verified")
    add_home_option(parser)
    add_json_option(parser)


def _add_list(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "list",
        run=run_list,
        summary="what there is, where, and how old",
        purpose="Look into every place: its newest snapshot, how far it is behind the newest head "
        "that anybody knows, when a snapshot was last made and when one was last verified. A "
        "repository that was put back to an older state is found here.",
        columns=(
            ("place", "where"),
            ("newest", "number of the newest snapshot it holds"),
            ("behind", "snapshots, steps and seconds behind the newest head that is known"),
            ("last backup", "when a snapshot was last made there"),
            ("last verified", "when one was last restored for a test"),
            ("result", "of the last run; or why the place cannot be looked at"),
        ),
        examples=("holdfast backup list", "holdfast backup list --snapshots --json"),
    )
    parser.add_argument("--snapshots", action="store_true", help="show every snapshot")
    add_home_option(parser)
    add_json_option(parser)


def _add_verify(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "verify",
        run=run_verify,
        summary="restore a snapshot for a test",
        purpose="Restore the newest snapshot of every place into a scratch folder, with nothing "
        "that this machine remembers of it, and compare all of it with the signed manifest; check "
        "the journal in it. Nothing of the agent is changed.",
        columns=(
            ("place", "where"),
            ("snapshot", "which one"),
            ("verified", "whether all of it is as it was signed"),
            ("seconds", "how long it took"),
            ("result", "ok, or what is wrong"),
        ),
        examples=("holdfast backup verify", "holdfast backup verify nas --json"),
    )
    parser.add_argument("place", nargs="*", help="these places alone (default: all)")
    parser.add_argument("--snapshot", metavar="NAME", default="", help="this one (default: the newest)")
    add_home_option(parser)
    add_json_option(parser)


def run_now(args: argparse.Namespace) -> int:
    import msgspec

    from holdfast.cli.screen.progress import Progress
    from holdfast.cli.screen.screen import print_json, print_table, talk

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

    home = backups.home
    notices = make_notices(find_settings(home.journal))
    await notify_warning(home, clock=SystemClock(), notices=notices)


def run_list(args: argparse.Namespace) -> int:
    import msgspec

    from holdfast.backup.report import list_report
    from holdfast.cli.screen.progress import Progress
    from holdfast.cli.screen.screen import print_json, talk
    from holdfast.errors import SnapshotsMissing

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
                    f"warning: {place.place} is behind the newest head that is known: its "
                    "repository was put back, or the last snapshot did not reach it"
                )
        return 0

    return run_async(work())


def run_verify(args: argparse.Namespace) -> int:
    import msgspec

    from holdfast.cli.screen.progress import Progress
    from holdfast.cli.screen.screen import print_json, print_table, talk

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
    from holdfast.cli.screen.screen import print_table

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
        empty="no places yet; `holdfast place add NAME FOLDER` makes one",
        state="result",
    )


def _print_snapshots(report: ListReport) -> None:
    from holdfast.cli.screen.screen import print_table

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
    from holdfast.cli.screen.screen import clock_time

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
    from holdfast.cli.screen.screen import talk

    for one in results:
        if one.error:
            talk(f"{one.place}: {one.message}")
            if one.hint:
                talk(f"hint: {one.place}: {one.hint}")


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def _exit_code(results: tuple[PlaceResult, ...]) -> int:
    return max((one.exit_code for one in results), default=0)
