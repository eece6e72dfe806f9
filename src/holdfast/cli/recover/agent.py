"""`holdfast recover --place ADDRESS`: what it asks and shows, in this order.

Rules of the screen: findings come before any question; a figure for everything that took time; the
one thing to do next at the end.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from holdfast.backup.open_engine import open_engine
from holdfast.backup.restore.restore_choice import Wish
from holdfast.backup.restore.restore_home import restore_to
from holdfast.cli.input.agent_places import (
    default_place,
    default_witness,
    path_of,
    read_card_file,
    read_log_file,
    second_place,
    witnesses_of,
)
from holdfast.cli.input.input_sheet import read_given
from holdfast.cli.input.input_slots import new_slots, open_existing
from holdfast.cli.input.terminal import confirm
from holdfast.cli.recover.show import PlannedRecovery, plan_json, show_loss, show_plan, show_survey, survey_json
from holdfast.cli.screen.progress import Progress
from holdfast.cli.screen.screen import print_fields, print_json, talk
from holdfast.cli.signals import run_async
from holdfast.core.clock import SystemClock, SystemEntropy, iso
from holdfast.errors import BackupDamaged, BadInput, HoldfastError
from holdfast.identity.log.log_state import LogStanding
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.vault import exists
from holdfast.layout.agent_home import home_in, root_folder
from holdfast.recovery.recover_agent import RecoveredAgent, RecoveryTarget, find_obstacle, recover_agent
from holdfast.recovery.survey import Evidence, Survey, survey_evidence


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    folder = root_folder(args.home)
    name = args.agent or folder.name.lower()
    vault = path_of(args.vault) if args.vault else default_place("vault", name)
    _check_words(args, vault)
    if not args.place and not os.path.lexists(home_in(folder) / "places.json"):
        args.place = [_ask_place()]
    at = None if args.at is None else _moment(args.at)
    with tempfile.TemporaryDirectory(prefix="holdfast-recover-") as scratch, Progress() as news:
        evidence = _have(args, vault)
        engine = run_async(open_engine(base=Path(scratch) / "borg", progress=news))
        survey = run_async(survey_evidence(evidence, folder, engine=engine, port=Sodium(), at=at))
        if not args.json:
            show_survey(survey)
        if args.dry_run:
            return _look_only(args, survey, folder, name, vault)
        if args.to:
            return _unpack(args, survey, news)
        target = _target(args, folder, name, vault)
        _confirm(args, survey, folder)
        done = run_async(
            recover_agent(
                survey, evidence, target, clock=SystemClock(), entropy=SystemEntropy(), port=Sodium(), tell=news.say
            )
        )
    _report(args, survey, done, seconds=time.monotonic() - began)
    return _start(args, done) if args.start else 0


def _look_only(args: argparse.Namespace, survey: Survey, folder: Path, name: str, vault: Path) -> int:
    """Show what would happen. At the end, raises the error that would prevent it."""
    obstacle = find_obstacle(
        survey,
        vault=vault,
        keep_keys=args.keep_keys or bool(args.to),
        again=args.again,
        accept_older=args.accept_older or bool(args.to),
    )
    second = path_of(args.second) if args.second else default_place("second", name)
    would = PlannedRecovery(folder=folder, vault=vault, second=second, keep_keys=args.keep_keys)
    if args.to and obstacle is None:
        try:
            report = run_async(restore_to(path_of(args.to), survey.means(Sodium()), _wish(args, survey), dry_run=True))
            would = replace(would, files=report)
        except HoldfastError as error:
            obstacle = error
    if args.json:
        planned = None if obstacle else plan_json(survey, would)
        print_json({**survey_json(survey), "done": False, "would": planned})
    elif obstacle is None:
        show_plan(survey, would)
    if obstacle is not None:
        raise obstacle
    return 0


def _wish(args: argparse.Namespace, survey: Survey) -> Wish:
    return Wish(at=survey.at, files=tuple(one.strip("/") for one in args.file))


def has_paper_alone(args: argparse.Namespace) -> bool:
    """Sheet and card, but no backup: only the identity can be recovered."""
    named = args.place or os.path.lexists(home_in(root_folder(args.home)) / "places.json")
    return bool(args.card) and not named and not args.keep_keys


def run_without_backup(args: argparse.Namespace) -> int:
    from holdfast.cli.identity.change import run_recover

    if args.dry_run or args.to or args.at or args.start:
        raise BadInput("no place was given, so there is nothing to restore", hint="give --place ADDRESS")
    talk("no place was given: this recovers the identity, without any state")
    args.name = args.agent or root_folder(args.home).name.lower()
    args.escrow = None
    if not args.witness and not args.new_witness:
        args.new_witness = [str(default_witness(args.name))]
    return run_recover(args)


def _check_words(args: argparse.Namespace, vault: Path) -> None:
    if args.file and not args.to:
        raise BadInput("--file needs --to FOLDER")
    if args.keep_keys and not exists(vault):
        raise BadInput(f"--keep-keys: there is no vault in {vault}", hint="give --vault DIR")


def _ask_place() -> str:
    if not sys.stdin.isatty():
        raise BadInput(
            "no place was given",
            hint="give --place FOLDER or --place ssh://user@host/path; "
            "if there is no backup, --card FILE recovers the identity alone",
        )
    talk("Where are the agent's backups? A folder, or ssh://user@host/path (see the public card).")
    print("place: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if not answer:
        raise BadInput("no place was given: nothing was changed")
    return answer


def _have(args: argparse.Namespace, vault: Path) -> Evidence:
    evidence = Evidence(
        places=tuple(args.place),
        agent=args.agent,
        rsh=args.rsh,
        witnesses=witnesses_of(args.witness),
        copies=tuple(
            [read_card_file(path_of(one)) for one in args.card] + [read_log_file(path_of(one)) for one in args.log]
        ),
    )
    if args.keep_keys:
        opened = open_existing(vault, "--passphrase-fd", args.passphrase_fd, what="the vault")
        return replace(evidence, vault=opened)
    given = read_given(args)
    return replace(evidence, words=given.words, shares=given.shares, passphrase=given.passphrase)


def _target(args: argparse.Namespace, folder: Path, name: str, vault: Path) -> RecoveryTarget:
    if args.keep_keys:
        second = path_of(args.second) if args.second else default_place("second", name)
        return RecoveryTarget(
            folder=folder, vault=vault, second=second, again=args.again, accept_older=args.accept_older
        )
    second = second_place(args.second, vault, name)
    keys, second_keys = new_slots(args)
    return RecoveryTarget(
        folder=folder,
        vault=vault,
        second=second,
        keys=keys,
        second_keys=second_keys,
        spare_witness=default_witness(name),
        new_witnesses=witnesses_of(args.new_witness),
        arbiter=str(default_place("arbiter", name)),
        again=args.again,
        accept_older=args.accept_older,
    )


def _confirm(args: argparse.Namespace, survey: Survey, folder: Path) -> None:
    if survey.chosen is None:
        return  # perform says why
    what = [f"Holdfast restores the agent into {folder}"]
    if os.path.lexists(folder):
        what.append("it keeps the folder that is there now under another name")
    if not args.keep_keys and survey.log.standing is not LogStanding.LOCKED:
        what.append("holders of the old keys are locked out")
    confirm("recover", "; ".join(what), yes=args.yes)


def _unpack(args: argparse.Namespace, survey: Survey, news: Progress) -> int:
    """Unpack a snapshot without making it the agent."""
    to = path_of(args.to)
    if os.path.lexists(to) and not args.file:
        raise BadInput(f"{to} exists already", hint="name a new folder")
    report = run_async(restore_to(to, survey.means(Sodium()), _wish(args, survey)))
    news.clear()
    if args.json:
        print_json(report)
    else:
        show_loss(report, said=not args.file)
        print(to)
    return BackupDamaged.exit_code if report.damaged else 0


def _report(args: argparse.Namespace, survey: Survey, done: RecoveredAgent, *, seconds: float) -> None:
    restored, journal = done.restored, done.journal
    suspect = 0 if journal is None else journal.open_tasks
    doubt = f"{suspect} in doubt: Holdfast looks up or parks their effects before it sends anything"
    fields: dict[str, object] = {
        **survey_json(survey),
        "done": True,
        "home": str(done.home.folder),
        "evicted": done.evicted,
        "position": list(done.log.position),
        "restored": restored,
        "incarnation": None if journal is None else journal.incarnation,
        "suspect_tasks": suspect,
        "places_left": list(done.left),
        "secrets_to_rotate": list(done.secrets),
        "restore_s": round(done.restore_s, 3),
        "identity_s": round(done.identity_s, 3),
        "seconds": round(seconds, 3),
    }
    if args.json:
        print_json(fields)
        return
    print_fields(
        [
            ("agent", done.home.name),
            ("id", done.log.id),
            ("home", str(done.home.folder)),
            ("state", _state(survey, done)),
            ("open tasks", doubt if suspect else "none in doubt"),
            ("time", f"restore {done.restore_s:.1f} s, identity {done.identity_s:.1f} s, total {seconds:.1f} s"),
        ]
    )
    if restored is not None and restored.kept:
        talk(f"the old folder is now {restored.kept}")
    if restored is not None:
        show_loss(restored, said=True)
    if done.secrets:
        talk("a thief of the old machine may know these secrets; replace their values: " + ", ".join(done.secrets))
    if done.evicted:
        talk("the words were typed on this machine: if it has a network, run `holdfast paper replace` soon")
    for name in done.left:
        talk(
            f"place {name} had only older snapshots and may have been rolled back: Holdfast no longer writes to "
            "it. Add a new folder: `holdfast place add NAME FOLDER`"
        )
    if not args.start:
        talk(f"next: holdfast worker APP --journal {done.home.journal}")


def _state(survey: Survey, done: RecoveredAgent) -> str:
    if done.restored is not None:
        seq, at = done.restored.seq, done.restored.at
    elif survey.chosen is not None:
        seq, at = survey.chosen.record.seq, survey.chosen.record.at
    else:
        return ""
    return f"restored snapshot {seq} of {iso(at * 1000)}; nothing newer was backed up"


def _start(args: argparse.Namespace, done: RecoveredAgent) -> int:
    """Become the worker: its supervising parent replaces this process."""
    talk(f"starting: holdfast worker {args.start}")
    sys.stdout.flush()
    words = ["worker", args.start, "--journal", str(done.home.journal)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "holdfast", *words])


def _moment(text: str) -> int:
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"--at: {text!r} is not a time", hint="for example 2026-11-15 or 2026-11-15T14:30") from None
    if len(text) == len("2026-11-15"):
        when = when.replace(hour=23, minute=59, second=59)
    return int((when if when.tzinfo else when.replace(tzinfo=dt.UTC)).timestamp())
