"""`holdfast target`: how long a recovery may take and how much may be lost, and who said so."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, acting_home, add_options, home_of, new_noun, new_verb
from holdfast.cli.screen.screen import clock_time, finish, print_fields, print_json
from holdfast.core.clock import iso
from holdfast.core.surfaces import Targets
from holdfast.errors import BadInput


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "target").help("""
        Targets of an agent: the time that a recovery may take (RTO), the time before a failure that may be lost (RPO),
        and the longest outage that its owner accepts (MTD). Levels, alarms and drills compare with them.
        examples:
          holdfast target set --rto 15m --rpo 1h --by 'Mira Lund'
          holdfast target show
        """)
    parser = new_verb(verbs, "set", run_set).help("""set targets

        Set the targets of this agent. What you leave out stays as it is. Times are seconds, or for example 5m, 1h, 1d.
        Holdfast keeps who set them and when, and all earlier ones, in targets.jsonl in the agent's folder.
        examples:
          holdfast target set --rto 15m --rpo 1h --by 'Mira Lund'
          holdfast target set --mtd 1d --json
          holdfast target set --restart 5
        """)
    parser.add_argument("--rto", metavar="TIME", help="from the failure to the first verified step")
    parser.add_argument("--rpo", metavar="TIME", help="how old the newest tested snapshot of a place may be")
    parser.add_argument("--restart", metavar="TIME", help="from a killed worker to its next verified step; default 1")
    parser.add_argument("--mtd", metavar="TIME", help="the longest outage that the owner accepts")
    add_options(parser, "--by", "--home", "--json")
    parser = new_verb(verbs, "show", run_show).help("""the targets, who set them, and when

        Show the targets of this agent; without any, the defaults.
        examples:
          holdfast target show
          holdfast target show --json
        """)
    add_options(parser, "--home", "--json")


def run_set(args: argparse.Namespace) -> int:
    from holdfast.core.clock import SystemClock
    from holdfast.host.who import user_at_host
    from holdfast.surfaces.targets import parse_seconds, read_targets, set_targets

    given = {"--rto": args.rto, "--rpo": args.rpo, "--mtd": args.mtd, "--restart": args.restart}
    seconds = {name: parse_seconds(text, what=name) for name, text in given.items() if text is not None}
    if not seconds:
        raise BadInput("give at least one of --rto, --rpo, --mtd and --restart")
    home = acting_home(args)
    before = read_targets(home)
    targets = Targets(
        rto_s=seconds.get("--rto", before.rto_s),
        rpo_s=seconds.get("--rpo", before.rpo_s),
        mtd_s=seconds.get("--mtd", before.mtd_s),
        restart_s=seconds.get("--restart", before.restart_s),
        by=args.by or user_at_host(),
        at_ms=SystemClock().wall_ms(),
    )
    set_targets(home, targets)
    return finish(args, _shape(targets), f"set: RTO {targets.rto_s:,} s, RPO {targets.rpo_s:,} s, by {targets.by}")


def run_show(args: argparse.Namespace) -> int:
    from holdfast.surfaces.targets import read_targets

    targets = read_targets(home_of(args))
    if args.json:
        print_json(_shape(targets))
        return 0
    fields = [
        ("RTO", f"{targets.rto_s:,} s"),
        ("RPO", f"{targets.rpo_s:,} s"),
        ("MTD", "not set" if targets.mtd_s is None else f"{targets.mtd_s:,} s"),
        ("restart", "1 s" if targets.restart_s is None else f"{targets.restart_s:,} s"),
        ("set by", f"{targets.by}, {clock_time(targets.at_ms)}" if targets.by else "not set: these are the defaults"),
    ]
    print_fields(fields)
    return 0


def _shape(targets: Targets) -> dict[str, object]:
    times = {"rto_s": targets.rto_s, "rpo_s": targets.rpo_s, "mtd_s": targets.mtd_s, "restart_s": targets.restart_s}
    return {**times, "by": targets.by, "at": iso(targets.at_ms), "default": not targets.by}
