"""`holdfast backup prune | due | schedule`: backups without a person."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.backup.places import APPEND_ONLY, over_places, place_shape
from holdfast.cli.command import Commands, add_flag, add_options, new_verb
from holdfast.cli.screen.screen import finish, print_json, print_table, talk
from holdfast.cli.signals import run_async

if TYPE_CHECKING:
    from holdfast.backup.places.backup_places import BackupPlaces
    from holdfast.backup.upkeep.prune import Pruned


def add_upkeep(verbs: Commands) -> None:
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
        last verified backup is too old. The exit code is 0 even if a place failed: a notice tells you what you must
        know.
        examples:
          holdfast backup due --every 1h
          holdfast backup due --every 1d --home ~/ada
        """)
    parser.add_argument("--every", metavar="TIME", default="1h", help="how often: 30m, 1h, 1d (1h)")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "schedule", run_schedule).help("""print or install a timer for backups

        Print a systemd service and timer for your user, and a line for cron, that run `holdfast backup due`.
        --install writes the two files; you start them.
        examples:
          holdfast backup schedule --every 1h
          holdfast backup schedule --every 1d --install
        """)
    parser.add_argument("--every", metavar="TIME", default="1h", help="how often: 30m, 1h, 1d (1h)")
    add_flag(parser, "--install", "write the files to ~/.config/systemd/user")
    add_options(parser, "--home", "--json")


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
    return run_async(_due(args))


async def _due(args: argparse.Namespace) -> int:
    from holdfast.app.notify import make_notices
    from holdfast.backup.places.backup_places import states_of
    from holdfast.backup.places.places import read_places
    from holdfast.backup.upkeep.scheduled import backup_of, parse_every, run_due
    from holdfast.core.clock import SystemClock
    from holdfast.layout.agent_home import home_folder, load_home
    from holdfast.layout.settings import find_settings

    every_s = parse_every(args.every)
    home = load_home(home_folder(args.home))
    notices = make_notices(find_settings(home.journal))
    names = await run_due(home, backup_of(home), every_s=every_s, clock=SystemClock(), notices=notices)
    states = states_of(home)
    places = [place_shape(one, states.of(one.name)) for one in read_places(home.places_file)]
    fields = {"due": list(names), "places": places}
    return finish(args, fields, f"due: {', '.join(names)}" if names else "nothing is due")


def run_schedule(args: argparse.Namespace) -> int:
    from holdfast.backup.upkeep.scheduled import install, make_schedule, units_folder
    from holdfast.layout.agent_home import home_folder, load_home

    home = load_home(home_folder(args.home))
    schedule = make_schedule(home.folder, agent=home.name, every=args.every)
    written = install(schedule, units_folder()) if args.install else ()
    if args.json:
        print_json(
            {
                "unit": schedule.unit,
                "service": schedule.service,
                "timer": schedule.timer,
                "cron": schedule.cron,
                "written": [str(path) for path in written],
            }
        )
        return 0
    if args.install:
        for path in written:
            talk(f"written: {path}")
        talk(
            f"start it: systemctl --user daemon-reload && systemctl --user enable --now "
            f"{schedule.unit}.timer\nto run it without a login: loginctl enable-linger"
        )
        return 0
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
