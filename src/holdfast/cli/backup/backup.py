"""`holdfast backup`: make, list and test snapshots of an agent, by hand or without a person."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.cli.backup.places import APPEND_ONLY, over_places, place_shape
from holdfast.cli.command import Commands, acting_home, add_flag, add_options, home_of, new_noun, new_verb
from holdfast.cli.screen.screen import clock_time, finish, one_line, print_json, print_table, talk
from holdfast.cli.signals import in_loop, run_async
from holdfast.errors import EXIT_PLACE, HoldfastError, SnapshotsMissing, VaultLocked

if TYPE_CHECKING:
    from holdfast.backup.archive.manifest import SnapshotNote
    from holdfast.backup.backups import Backups
    from holdfast.backup.places.backup_places import BackupPlaces
    from holdfast.backup.report import ListReport, NowReport, PlaceResult, PlaceShape
    from holdfast.backup.upkeep.prune import Pruned
    from holdfast.backup.upkeep.scheduled import Schedule
    from holdfast.layout.agent_home import AgentHome

T = TypeVar("T")
LEFT_SHOWN = 20  # files that are in no backup, named one by one


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "backup").help("""
        Snapshots of an agent in its places. A new snapshot is not yet a backup: it counts after Holdfast has
        restored it for a test and compared every byte with the signed manifest.
        examples:
          holdfast backup now
          holdfast backup list
          holdfast backup verify
        """)
    parser = new_verb(verbs, "now", in_loop(_now)).help("""make a snapshot in every place, and test it

        Make a snapshot of the agent in every place at once, and restore it for a test from each. The agent may
        continue to work. Each place has its own result; a place that fails does not stop the others. The agent's
        relays get the signed head of the snapshot as soon as one place has it; if none can be reached, a line says so.
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
    parser = new_verb(verbs, "list", in_loop(_list)).help("""which snapshots exist, where, and how old

        List every snapshot, newest first, and which places hold it. Holdfast looks into every place for it, and
        warns of a place that is behind, that lacks a snapshot, or whose repository was rolled back.

        With --places, show for every place its newest snapshot, how far it is behind the newest one that any place
        knows of, and when a snapshot was last made and last verified there.
        columns:
          number    of the snapshot; each has one more than the one before
          made      when
          files     how many
          bytes     of all files together
          places    which places hold it
          snapshot  its name, as `backup verify --snapshot` takes it
        examples:
          holdfast backup list
          holdfast backup list --places --json
        """)
    add_flag(parser, "--places", "show the places instead: newest, behind, last backup, last verified, result")
    add_flag(parser, "--snapshots", "show snapshots and places")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "verify", in_loop(_verify)).help("""restore a snapshot for a test

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
    parser.add_argument("--snapshot", metavar="NAME", default="", help="the snapshot to verify (default: the newest)")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "prune", over_places(_prune)).help("""remove old snapshots, never the last verified one

        Remove snapshots that the rules under [backup] do not keep, but never the newest verified one or anything
        newer. Holdfast first compares each place with the signed heads: if a snapshot is missing, it reports this
        and removes nothing there. At an append-only place, removals hide snapshots and free no space.
        columns:
          place    where
          kept     snapshots that stay
          removed  snapshots that were removed; with --dry-run, would be
          unnamed  archives that no head names: not touched
          result   ok, or why nothing was removed
        examples:
          holdfast backup prune --dry-run
          holdfast backup prune nas
        """)
    parser.add_argument("place", metavar="PLACE", nargs="*", help="only these places (default: all)")
    add_options(parser, "--dry-run")
    add_flag(parser, "--accept-missing", "continue although snapshots are missing: you know who removed them")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "due", run_due).help("""back up to every place that is due

        Back up to every place that is due, and send notices as [notices] says. For timers and cron. If a place
        failed, Holdfast tries it again soon, then less often. A disk that is not mounted raises no alarm until its
        last verified backup is too old. The exit code is 0 if at least one place that was due got a backup, or
        nothing was due; a notice tells you about places that failed.
        examples:
          holdfast backup due --every 1h
          holdfast backup due --every 1d --home ~/ada
        """)
    parser.add_argument("--every", metavar="TIME", default="1h", help="back up this often: 30m, 1h, 1d (default: 1h)")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "schedule", run_schedule).help("""print or install a timer for backups

        Print a systemd service and timer for your user, and a line for cron, that run `holdfast backup due`.
        --install writes the two files; you start them.
        examples:
          holdfast backup schedule --every 1h
          holdfast backup schedule --every 1d --install
        """)
    parser.add_argument("--every", metavar="TIME", default="1h", help="back up this often: 30m, 1h, 1d (default: 1h)")
    add_flag(parser, "--install", "write the files to ~/.config/systemd/user")
    add_options(parser, "--home", "--json")


async def _now(args: argparse.Namespace) -> int:
    from holdfast.app.instances.shared_roster import check_keys_count

    check_keys_count(home_of(args).folder)
    backups, report = await _in_backups(args, lambda backups: backups.now(args.place, check=not args.no_verify))
    await _tell_warning(backups)
    if args.json:
        print_json(report)
        return _exit_code(report.places)
    made = report.snapshot
    talk(f"{made.archive}: {made.files:,} files, {made.bytes:,} bytes in {report.seconds:g} s")
    _print_notes(made.notes)
    rows = [
        (one.place, _yes(one.made), _yes(one.verified), f"{one.stored_bytes:,}", _result(one)) for one in report.places
    ]
    print_table(("place", "made", "verified", "stored", "result"), rows, empty="there is no place", state="result")
    _print_hints(report.places)
    for one in report.warnings:
        talk(f"WARNING: {one.message}\nhint: {one.hint}")
    return _exit_code(report.places)


def _print_notes(notes: Sequence[SnapshotNote]) -> None:
    """What a person should know of single files: first what is in no backup."""
    from holdfast.layout.covering import SEALED_NOTE, is_no_loss

    texts = [(one.path, one.text.removeprefix("left out: "), one.text.startswith("left out")) for one in notes]
    out = [(path, text) for path, text, left in texts if left and not is_no_loss(text)]
    for path, text in out[:LEFT_SHOWN]:
        talk(f"not backed up: {one_line(path)}: {text}")
    if len(out) > LEFT_SHOWN:
        talk(f"not backed up: {len(out) - LEFT_SHOWN:,} more files and folders (--json lists them)")
    if any("secret" in text or "key" in text for _, text in out):
        talk(
            "hint: for an adopted agent, `holdfast adopt FOLDER --seal-secrets` seals its secret files into each backup"
        )
    if sealed := sum(text == SEALED_NOTE for _, text, _ in texts):
        talk(f"sealed: {sealed} secret files; `holdfast recover` puts them back")
    for path, text, left in texts:
        if not left and text != SEALED_NOTE:
            talk(f"note: {one_line(path)}: {text}")


async def _tell_warning(backups: Backups) -> None:
    from holdfast.app.notify import make_notices
    from holdfast.backup.upkeep.scheduled import notify_warning
    from holdfast.core.clock import SystemClock
    from holdfast.layout.settings import find_settings

    notices = make_notices(find_settings(backups.home.journal))
    await notify_warning(backups.home, clock=SystemClock(), notices=notices)


async def _list(args: argparse.Namespace) -> int:
    from holdfast.backup.report import list_report

    backups, found = await _in_backups(args, lambda backups: backups.look())
    report = list_report(backups.home.name, found, backups.states())
    if args.json:
        print_json(report)
        return 0
    if args.snapshots or not args.places:
        _print_snapshots(report)
    if args.snapshots or args.places:
        _print_places(report)
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
                f"warning: {place.place} does not have the newest snapshot: its repository "
                "was rolled back, or the last snapshot did not reach it"
            )
    return 0


async def _verify(args: argparse.Namespace) -> int:
    _, report = await _in_backups(args, lambda backups: backups.verify(args.place, archive=args.snapshot))
    if args.json:
        print_json(report)
        return _exit_code(report.places)
    rows = [(one.place, one.archive, _yes(one.verified), f"{one.verify_s:.1f}", _result(one)) for one in report.places]
    print_table(("place", "snapshot", "verified", "seconds", "result"), rows, empty="there is no place", state="result")
    _print_hints(report.places)
    for text in report.findings:
        talk(f"warning: {text}")
    return _exit_code(report.places)


async def _in_backups(args: argparse.Namespace, work: Callable[[Backups], Awaitable[T]]) -> tuple[Backups, T]:
    """Open the backups and do this with them, showing progress."""
    from holdfast.backup.backups import open_backups
    from holdfast.cli.screen.progress import Progress

    with Progress() as news:
        backups = await open_backups(home_of(args), progress=news)
        return backups, await work(backups)


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
            _when(one.at),
            f"{one.files:,}",
            f"{one.bytes:,}",
            ", ".join(one.places) or "nowhere",
            one.archive,
        )
        for one in report.snapshots
    ]
    print_table(
        ("number", "made", "files", "bytes", "places", "snapshot"),
        rows,
        empty="no snapshots yet; `holdfast backup now` makes one",
    )


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


async def _prune(places: BackupPlaces, args: argparse.Namespace) -> int:
    from holdfast.app.notify import make_notices
    from holdfast.backup.upkeep.prune import prune
    from holdfast.backup.upkeep.scheduled import notify_refused_prunes
    from holdfast.core.clock import SystemClock
    from holdfast.layout.settings import find_settings

    for name in args.place:
        places.get(name)
    done = await prune(places, names=args.place, dry_run=args.dry_run, accept_missing=args.accept_missing)
    if args.json:
        print_json({"dry_run": args.dry_run, "places": [_shape(one) for one in done]})
    else:
        print_table(
            ("place", "kept", "removed", "unnamed", "result"),
            [_row(one) for one in done],
            empty="no places yet; `holdfast place add NAME FOLDER` adds one",
        )
        if any(one.place.append_only for one in done):
            talk(APPEND_ONLY)
    failed = [one for one in done if one.error is not None]
    if not args.dry_run:
        notices = make_notices(find_settings(places.home.journal))
        await notify_refused_prunes(failed, notices=notices, clock=SystemClock())
    errors = [(one.place.name, one.error) for one in done if one.error is not None]
    for name, error in () if args.json else errors:
        talk(f"{name}: {error.message}\nhint: {error.hint}")
    return errors[0][1].exit_code if errors else 0


def run_due(args: argparse.Namespace) -> int:
    from holdfast.app.notify import with_pings

    home = acting_home(args)
    return with_pings(home.settings.watch.ping, lambda: run_async(_due(args, home)), warn=talk)


async def _due(args: argparse.Namespace, home: AgentHome) -> int:
    from holdfast.app.notify import make_notices
    from holdfast.backup.chain.sources import NO_RELAY
    from holdfast.backup.places.backup_places import states_of
    from holdfast.backup.places.place_state import PlaceState
    from holdfast.backup.places.places import read_places
    from holdfast.backup.turns import take_duty
    from holdfast.backup.upkeep.scheduled import backup_of, parse_every, run_due
    from holdfast.core.clock import SystemClock
    from holdfast.layout.settings import find_settings
    from holdfast.surfaces.alarms import tell_once

    every_s = parse_every(args.every)
    notices = make_notices(find_settings(home.journal))
    began_ms = SystemClock().wall_ms()
    made: list[NowReport] = []
    backup = backup_of(home, made.append)
    names = await run_due(home, backup, every_s=every_s, clock=SystemClock(), notices=notices)
    try:
        await tell_once(home, notices)
    except (HoldfastError, OSError) as error:  # the backups are made
        talk(f"warning: could not look at the level: {error}")
    states = states_of(home).read()
    places = [place_shape(one, states.get(one.name, PlaceState())) for one in read_places(home.places_file)]
    other = "" if names else await asyncio.to_thread(take_duty, home)
    said = f"due: {', '.join(names)}" if names else "nothing is due"
    said = f"another host makes the scheduled backups: {other}" if other else said
    relays = [one for report in made for one in report.relays]
    finish(args, {"due": list(names), "host": other, "places": places, "relays": relays}, said)
    if relays and not any(one.held for one in relays):
        talk(NO_RELAY)
    tried = [(name, states[name]) for name in names if name in states]
    failed = [(name, state) for name, state in tried if state.failures and state.tried_ms >= began_ms]
    if not failed or len(failed) < len(names):
        return 0
    if not args.json:
        talk("nothing was backed up:\n" + "\n".join(f"  {name}: {state.message}" for name, state in failed))
        if any(state.result == VaultLocked.code for _, state in failed):
            talk(f"hint: {ADD_UNLOCK}")
    return EXIT_PLACE


ADD_UNLOCK = (
    "give the vault a way to open without a person: `holdfast identity add-unlock --unlock-file FILE`; FILE should be "
    "on another disk than the vault"
)


def run_schedule(args: argparse.Namespace) -> int:
    from holdfast.backup.upkeep.scheduled import make_schedule

    home = acting_home(args)
    schedule = make_schedule(home.folder, agent=home.name, every=args.every)
    lingers = "\nto run it while you are not logged in: loginctl enable-linger"
    return print_schedule(args, home, schedule, lost="backup will be made", hint=ADD_UNLOCK, note=lingers)


def print_schedule(
    args: argparse.Namespace, home: AgentHome, schedule: Schedule, *, lost: str, hint: str, note: str = ""
) -> int:
    """Print or install a timer; `lost` is what does not happen while the vault needs a person."""
    from holdfast.backup.upkeep.scheduled import install, units_folder
    from holdfast.identity.vault.vault import opens_unattended

    locked = home.vault is not None and not opens_unattended(home.vault)
    if locked and not args.json:
        talk(
            f"WARNING: no scheduled {lost}: the vault opens only with a passphrase, and a timer cannot type it\n"
            f"hint: {hint}"
        )
    written = install(schedule, units_folder()) if args.install else ()
    if args.json:
        fields = {"unit": schedule.unit, "service": schedule.service, "timer": schedule.timer, "cron": schedule.cron}
        print_json({**fields, "written": [str(path) for path in written], "vault_opens": not locked})
    elif args.install:
        for path in written:
            talk(f"written: {path}")
        start = f"systemctl --user daemon-reload && systemctl --user enable --now {schedule.unit}.timer"
        talk(f"start the timer: {start}{note}")
    else:
        print(f"# ~/.config/systemd/user/{schedule.unit}.service\n{schedule.service}")
        print(f"# ~/.config/systemd/user/{schedule.unit}.timer\n{schedule.timer}")
        print(f"# or, with crontab -e:\n{schedule.cron}")
    return 0


def _row(one: Pruned) -> tuple[str, ...]:
    if one.plan is None:
        return (one.place.name, "-", "-", "-", one.error.code if one.error else "ok")
    counts = (len(one.plan.keep), len(one.plan.remove), len(one.plan.unnamed))
    return (one.place.name, *map(str, counts), "ok")


def _shape(one: Pruned) -> dict[str, object]:
    plan = one.plan
    return {
        "place": one.place.name,
        "append_only": one.place.append_only,
        "kept": list(plan.keep) if plan else [],
        "removed": list(plan.remove) if plan else [],
        "unnamed": list(plan.unnamed) if plan else [],
        "missing": list(plan.missing) if plan else [],
        "result": one.error.code if one.error else "ok",
        "message": one.error.message if one.error else "",
    }
