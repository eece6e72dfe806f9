"""`holdfast drill stand`: the copies that stay."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.cli.command import home_of
from holdfast.cli.screen.screen import clock_time, finish, print_json, print_table, talk
from holdfast.drills.standing.copy import COPY, end_stand, forward
from holdfast.drills.standing.job import Stand, find_stand, list_stands, newest_verified, stands_folder
from holdfast.errors import BadInput, HoldfastError
from holdfast.layout.agent_home import find_home


def run(args: argparse.Namespace) -> int:
    if args.act == "list":
        return _list(args)
    home = home_of(args)
    stand = find_stand(home.name)
    if args.act == "end":
        ended = end_stand(home.name)
        text = f"{home.name}: the standing copy is removed" if ended else f"{home.name} has no standing copy"
        return finish(args, {"agent": home.name, "ended": ended}, text)
    if stand is None:
        raise BadInput(f"{home.name} has no standing copy", hint="`holdfast drill run host-loss --stand` makes one")
    made = forward(home, rescue_key=Path(stand.rescue_key), place=stand.place)
    return finish(args, _shape(made), f"{home.name}: the standing copy has snapshot {made.seq}")


def _list(args: argparse.Namespace) -> int:
    found = list_stands()
    if args.json:
        print_json({"stands": [_shape(one) for one in found]})
        return 0
    rows = [
        (one.agent, str(one.seq), clock_time(one.at * 1000), _behind(one), f"{stands_folder() / one.agent}")
        for one in found
    ]
    print_table(("agent", "snapshot", "made", "behind", "folder"), rows, empty="no copy stands")
    if found:
        talk(f"in the shadow of a drill each copy is at {COPY}")
    return 0


def _behind(stand: Stand) -> str:
    """Whether a newer snapshot was verified; a question mark where the agent's folder cannot say it."""
    try:
        home = find_home(Path(stand.home))
        return "?" if home is None else "no" if newest_verified(home) in ("", stand.archive) else "yes"
    except (HoldfastError, OSError):
        return "?"


def _shape(stand: Stand) -> dict[str, object]:
    names = ("agent", "id", "home", "place", "archive", "seq", "at", "files", "forwarded_ms")
    return {**{name: getattr(stand, name) for name in names}, "behind": _behind(stand) == "yes"}
