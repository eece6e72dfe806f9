"""`holdfast worker APP`: run tasks until stopped."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, add_list, add_options, new_command
from holdfast.cli.input.input_journal import journal_of

PORT_MAX = 65_535
JOBS = (
    "holdfast.surfaces.alarms:keep_watch",
    "holdfast.drills.standing.job:keep_forward",
    "holdfast.app.mail.profile_job:keep_published",
)


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "worker", run).help("""
        Run the tasks of an app until you stop it. This process supervises a worker process and starts it again when
        it dies; the new one resumes its tasks at once. SIGTERM or Ctrl-C lets calls in flight finish; a second one
        kills the worker, which loses nothing. Any number of workers may serve one journal: on one machine, or on
        many hosts if it is in PostgreSQL. Events go to standard error, as JSON lines unless it is a terminal. One
        worker may serve many agents: `holdfast explain many-agents`.
        examples:
          holdfast worker trip.py:tasks
          holdfast worker orders.app:app --journal /var/lib/orders --health-port 9471
          holdfast worker orders.app:app --build 2026-11-16
          holdfast worker agents.app:app --home /srv/ada --home /srv/ben
          holdfast worker agents.app:app --fleet /etc/holdfast/agents.txt
        """)
    parser.add_argument("app", metavar="APP", help="tasks to run: module:attribute or path/file.py:attribute")
    add_options(parser, "--journal")
    add_list(
        parser,
        "--home",
        "DIR",
        "the agent's folder (default: $HOLDFAST_HOME, else this folder); several times: serve all these agents",
    )
    parser.add_argument(
        "--fleet", metavar="FILE", help="serve the agents whose folders this file lists, one on each line"
    )
    add_options(parser, "--config", "--new-journal")
    parser.add_argument("--name", help="a name for this worker (default: host:pid)")
    parser.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="tasks that run at the same time, of all agents together (default: 200)",
    )
    parser.add_argument(
        "--lease-ttl",
        type=float,
        metavar="S",
        help="after S seconds without a sign of life from this worker, others take over its tasks (default: 10)",
    )
    parser.add_argument(
        "--grace", type=float, metavar="S", help="seconds for calls in flight to finish when stopping (default: 20)"
    )
    parser.add_argument(
        "--health-port",
        type=_port,
        metavar="N",
        help="answer /healthz and /metrics on 127.0.0.1:N; 0 picks a free port and logs it",
    )
    parser.add_argument(
        "--build",
        metavar="ID",
        default="",
        help='which build of the app this is; tasks with on_change="pin" finish on the build that began them',
    )
    parser.add_argument(
        "--take-over",
        metavar="BUILD",
        action="append",
        default=[],
        help="a build that is gone for good: finish its tasks with this one; may be given several times",
    )
    parser.add_argument(
        "--drain", action="store_true", help="begin no task; finish those that are pinned to this build, then end"
    )
    parser.add_argument(
        "--backup-every",
        metavar="TIME",
        default="",
        help="also back up the agent to every place, this often: 30m, 1h, 1d",
    )


def run(args: argparse.Namespace) -> int:
    from holdfast.app.worker import Order, run_worker

    given = {
        "worker_name": args.name,
        "concurrency": args.concurrency,
        "lease_ttl_s": args.lease_ttl,
        "grace_s": args.grace,
    }
    homes: list[str] = _homes(args)
    args.home = args.home[0] if args.home else None
    address = None if homes else journal_of(args)
    order = Order(
        app=args.app,
        journal="" if address is None else str(address),
        home=str(address.folder) if address is not None and address.url else "",
        homes=homes,
        config=args.config,
        overrides={name: value for name, value in given.items() if value is not None},
        health_port=args.health_port,
        backup_every=args.backup_every,
        new_journal=args.new_journal,
        build=args.build,
        take_over=args.take_over,
        drain=args.drain,
        jobs=JOBS,
    )
    return run_worker(order)


def _homes(args: argparse.Namespace) -> list[str]:
    """The folders of many agents; none where one agent has the worker to itself. Raises BadInput, BadSettings."""
    if args.fleet is None and len(args.home) < 2:
        return []
    from pathlib import Path

    from holdfast.errors import BadInput
    from holdfast.layout.fleet import fleet_folders, read_fleet

    for option in ("journal", "config", "new_journal"):
        if getattr(args, option):
            raise BadInput(
                f"--{option.replace('_', '-')} is for one agent, and this worker serves several",
                hint="write the agent's settings, also the url of its journal, to holdfast.toml in its folder",
            )
    return fleet_folders([*args.home, *(read_fleet(Path(args.fleet)) if args.fleet else ())])


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= PORT_MAX:
        raise argparse.ArgumentTypeError(f"must be between 0 and {PORT_MAX}, not {number}")
    return number
