"""`holdfast place`: where an agent's backups go."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_home_option, add_json_option, add_verbs, new_command
from holdfast.cli.signals import run_async

if TYPE_CHECKING:
    from holdfast.backup.places.backup_places import BackupPlaces
    from holdfast.backup.places.place_state import PlaceState
    from holdfast.backup.places.places import Place


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "place",
        run=None,
        purpose="Where an agent's backups go: folders on other disks, and repositories on other "
        "hosts. Each place has its own repository and its own key; one that fails stops no other.",
        examples=("holdfast place add nas /mnt/nas/holdfast --domain 'NAS in the cellar'", "holdfast place list"),
    )
    verbs = add_verbs(parser)
    _add_add(verbs)
    _add_list(verbs)
    _add_check(verbs)
    _add_move(verbs)
    _add_mend_key(verbs)
    _add_break_lock(verbs)
    _add_remove(verbs)


def _add_add(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "add",
        run=run_add,
        summary="a new place, with a repository of its own",
        purpose="Add a place and make an encrypted Borg repository there. A folder must exist: a "
        "disk that is not mounted is not taken for a new one. What your paper needs to bring the "
        "agent back from this place alone (escrow.age, the heads, the key blocks of the other "
        "places) is put beside the repository.",
        examples=(
            "holdfast place add nas /mnt/nas/holdfast --domain 'NAS in the cellar'",
            "holdfast place add host ssh://backup@host.example/./ada --append-only",
            "holdfast place add host backup@host.example:ada --rsh 'ssh -i ~/.ssh/backup'",
        ),
    )
    parser.add_argument("name", metavar="NAME", help="what you call it: nas, second-host")
    parser.add_argument("address", metavar="ADDRESS", help="a folder, ssh://user@host:port/path, or user@host:path")
    parser.add_argument(
        "--domain",
        metavar="TEXT",
        default="",
        help="what fails together with it: a machine, a room, a provider (default: the host's "
        "name; for folders, this machine)",
    )
    parser.add_argument(
        "--append-only",
        action="store_true",
        help="the far end runs `borg serve --append-only`: removals are recorded there, not done",
    )
    parser.add_argument("--rsh", metavar="COMMAND", default="", help="how to reach the host (default: ssh)")
    parser.add_argument("--remote-borg", metavar="NAME", default="", help="the name of Borg on that host (borg)")
    parser.add_argument(
        "--beside",
        metavar="ADDRESS",
        default="",
        help="a second repository for escrow.age and heads, where the host allows only "
        "repositories that it made itself (default: ADDRESS-beside)",
    )
    add_home_option(parser)
    add_json_option(parser)


def _add_list(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "list",
        run=run_list,
        summary="every place, and when it was last verified",
        purpose="Every place of the agent, as this machine knows it; nothing is contacted.",
        columns=(
            ("place", "its name"),
            ("address", "where it is"),
            ("domain", "what fails together with it; places that share one are named below"),
            ("verified", "since the newest snapshot restored for a test; only this counts"),
            ("made", "since the newest snapshot that was made"),
            ("result", "of the last try: ok, or the code of the error"),
        ),
        examples=("holdfast place list", "holdfast place list --json"),
    )
    add_home_option(parser)
    add_json_option(parser)


def _add_check(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "check",
        run=run_check,
        summary="is it there, does it open, is it whole",
        purpose="Look at a place: the right disk is mounted, the repository opens and is the one "
        "that was added, no snapshot that it held is gone, and what a bare machine needs lies "
        "beside. --deep reads every chunk; only a test restore (`holdfast backup verify`) shows "
        "more.",
        examples=("holdfast place check nas", "holdfast place check nas --deep --json"),
    )
    _add_name(parser)
    parser.add_argument("--deep", action="store_true", help="read every chunk; takes its time")
    parser.add_argument(
        "--mark", action="store_true", help="write the file again by which the place is known: you say that this is it"
    )


def _add_move(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "move",
        run=run_move,
        summary="the same repository at another address",
        purpose="The place lies elsewhere now. Its repository must be the same one; never go on "
        "with a copy and its original.",
        examples=("holdfast place move nas /mnt/rack/holdfast",),
    )
    parser.add_argument("name", metavar="NAME", help="the place")
    parser.add_argument("address", metavar="ADDRESS", help="where it is now")
    add_home_option(parser)
    add_json_option(parser)


def _add_mend_key(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "mend-key",
        run=run_mend_key,
        summary="put a lost key block back",
        purpose="Put the vault's copy of the key block back into a repository that lost its own.",
        examples=("holdfast place mend-key nas",),
    )
    _add_name(parser)


def _add_break_lock(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "break-lock",
        run=run_break_lock,
        summary="remove the lock of a dead machine",
        purpose="Remove a lock that another machine left behind when it died. Two clients at "
        "once can damage a repository: be sure that no other one is at work.",
        examples=("holdfast place break-lock nas",),
    )
    _add_name(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask for the typed word")


def _add_remove(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "remove",
        run=run_remove,
        summary="no more backups there; what is there stays",
        purpose="Back up no more to this place. What lies there stays and can be restored; the vault keeps its key.",
        examples=("holdfast place remove usb", "holdfast place remove usb --yes"),
    )
    _add_name(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask for the typed word")


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the place")
    add_home_option(parser)
    add_json_option(parser)


def run_opened(args: argparse.Namespace, work: Callable[[BackupPlaces, argparse.Namespace], Awaitable[int]]) -> int:
    """Run the work over the agent's places, its vault open."""

    async def main() -> int:
        from holdfast.backup.places.backup_places import open_places
        from holdfast.cli.screen.progress import Progress
        from holdfast.layout.agent_home import home_folder, load_home

        home = load_home(home_folder(args.home))
        with Progress() as news:
            return await work(await open_places(home, progress=news), args)

    return run_async(main())


def run_add(args: argparse.Namespace) -> int:
    return run_opened(args, _add)


async def _add(places: BackupPlaces, args: argparse.Namespace) -> int:
    from holdfast.backup.places.backup_places import PlaceRequest
    from holdfast.backup.places.place_state import PlaceState
    from holdfast.backup.places.places import shared_domains
    from holdfast.cli.screen.screen import print_json, talk

    place = await places.add(
        PlaceRequest(
            name=args.name,
            address=args.address,
            domain=args.domain,
            append_only=args.append_only,
            rsh=args.rsh,
            remote_program=args.remote_borg,
            beside=args.beside,
        )
    )
    if args.json:
        print_json(place_shape(place, PlaceState()))
        return 0
    talk(f"added: {place.name} at {place.repository}")
    for names in shared_domains(places.read()).values():
        talk(f"note: {' and '.join(names)} share a failure domain: they can be lost together")
    if place.append_only:
        talk(APPEND_ONLY)
    talk("next: `holdfast backup now`, and print your recovery sheet anew: it names the places")
    return 0


APPEND_ONLY = (
    "note: append-only is not immutable: removals are recorded and hide a snapshot; its data "
    "stays until somebody with rights on that host compacts the repository"
)


def run_list(args: argparse.Namespace) -> int:
    from holdfast.backup.places.backup_places import states_of
    from holdfast.backup.places.place_state import PlaceState, missing_text, shown
    from holdfast.backup.places.places import read_places, shared_domains
    from holdfast.cli.screen.screen import print_json, print_table, talk
    from holdfast.core.clock import SystemClock
    from holdfast.errors import SnapshotsMissing
    from holdfast.layout.agent_home import home_folder, load_home

    home = load_home(home_folder(args.home))
    places = read_places(home.places_file)
    states = states_of(home).read()
    shared = shared_domains(places)
    rows = [(place, states.get(place.name, PlaceState())) for place in places]
    if args.json:
        print_json(
            {
                "places": [place_shape(place, state) for place, state in rows],
                "shared_domains": [list(names) for names in shared.values()],
            }
        )
        return 0
    now = SystemClock().wall_ms()
    print_table(
        ("place", "address", "domain", "verified", "made", "result"),
        [
            (
                place.name,
                place.address,
                place.domain,
                _since(now, state.verified_ms),
                _since(now, state.made_ms),
                shown(state)[0] or "-",
            )
            for place, state in rows
        ],
        empty="no places yet; `holdfast place add NAME FOLDER` adds one",
    )
    for place, state in rows:
        if state.missing:
            talk(f"{place.name}: {missing_text(state)}\nhint: {SnapshotsMissing.default_hint}")
    for names in shared.values():
        talk(f"note: {' and '.join(names)} share a failure domain: they can be lost together")
    if any(place.append_only for place in places):
        talk(APPEND_ONLY)
    return 0


def run_check(args: argparse.Namespace) -> int:
    return run_opened(args, _check)


async def _check(places: BackupPlaces, args: argparse.Namespace) -> int:
    from holdfast.backup.upkeep.check_place import check_place
    from holdfast.cli.screen.screen import print_json, talk

    if args.mark:
        places.mark(args.name)
    found = await check_place(places, args.name, deep=args.deep)
    error = found.error
    if args.json:
        print_json(
            {
                "name": args.name,
                "deep": args.deep,
                "snapshots": list(found.snapshots),
                "missing": list(found.missing),
                "beside": list(found.beside),
                "result": "ok" if error is None else error.code,
            }
        )
        return 0 if error is None else error.exit_code
    read = "every chunk was read" if args.deep else "not read: --deep reads every chunk"
    how = "well" if error is None else "NOT WELL"
    talk(f"{how}: {args.name}, {len(found.snapshots)} snapshots ({read})")
    if error is None:
        return 0
    talk(f"{error.message}\nhint: {error.hint}")
    if found.missing:
        for text in found.beside:
            talk(f"beside the repository: {text}")
    return error.exit_code


def run_move(args: argparse.Namespace) -> int:
    return run_opened(args, _move)


async def _move(places: BackupPlaces, args: argparse.Namespace) -> int:
    from holdfast.backup.places.backup_places import states_of
    from holdfast.cli.screen.screen import print_json, talk

    place = await places.move(args.name, args.address)
    if args.json:
        print_json(place_shape(place, states_of(places.home).of(place.name)))
        return 0
    talk(f"moved: {place.name} is at {place.repository}")
    return 0


def run_mend_key(args: argparse.Namespace) -> int:
    return run_opened(args, _mend_key)


async def _mend_key(places: BackupPlaces, args: argparse.Namespace) -> int:
    from holdfast.cli.screen.screen import print_json, talk

    await places.mend_key(args.name)
    listing = await places.check(args.name)
    if args.json:
        print_json({"name": args.name, "snapshots": [one.name for one in listing.archives]})
        return 0
    talk(f"mended: {args.name} opens again, {len(listing.archives)} snapshots")
    return 0


def run_break_lock(args: argparse.Namespace) -> int:
    return run_opened(args, _break_lock)


async def _break_lock(places: BackupPlaces, args: argparse.Namespace) -> int:
    from holdfast.cli.input.confirm import confirm
    from holdfast.cli.screen.screen import print_json, talk

    place = places.get(args.name)
    confirm(args.name, f"the lock of {place.repository} is removed", yes=args.yes)
    await places.break_lock(args.name)
    if args.json:
        print_json({"name": args.name, "repository": place.repository})
        return 0
    talk(f"removed: the lock of {args.name}")
    return 0


def run_remove(args: argparse.Namespace) -> int:
    return run_opened(args, _remove)


async def _remove(places: BackupPlaces, args: argparse.Namespace) -> int:
    from holdfast.cli.input.confirm import confirm
    from holdfast.cli.screen.screen import print_json, talk

    place = places.get(args.name)
    confirm(args.name, f"no more backups to {place.address}; what is there stays", yes=args.yes)
    places.remove(args.name)
    if args.json:
        print_json({"name": args.name, "repository": place.repository})
        return 0
    talk(f"removed: {args.name}; its repository is still at {place.repository}")
    return 0


def _since(now_ms: int, at_ms: int) -> str:
    from holdfast.backup.upkeep.due import is_ahead
    from holdfast.cli.screen.screen import ago

    if is_ahead(at_ms, now_ms=now_ms):
        return f"in {ago(at_ms - now_ms)}: by a wrong clock"
    return ago(now_ms - at_ms) if at_ms else "never"


def place_shape(place: Place, state: PlaceState) -> dict[str, object]:
    from holdfast.backup.places.place_state import shown
    from holdfast.core.clock import iso

    result, message = shown(state)
    return {
        "name": place.name,
        "kind": place.kind.value,
        "address": place.address,
        "repository": place.repository,
        "repository_id": place.repository_id,
        "domain": place.domain,
        "append_only": place.append_only,
        "epoch": place.epoch,
        "added": iso(place.added_ms),
        "tried": iso(state.tried_ms),
        "result": result,
        "message": message,
        "failures": state.failures,
        "made": iso(state.made_ms),
        "made_snapshot": state.made,
        "verified": iso(state.verified_ms),
        "verified_snapshot": state.verified,
        "missing": list(state.missing),
    }
