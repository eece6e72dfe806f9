"""`holdfast recover --place ADDRESS`: what it asks and shows, in this order.

Rules of the screen: findings come before any question; a figure for everything that took time; the
one thing to do next at the end.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shlex
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from holdfast.backup.open_engine import open_engine
from holdfast.backup.places.companion_files import FoundPlaces, find_sources
from holdfast.backup.report import NowReport
from holdfast.backup.restore.restore_choice import Wish
from holdfast.backup.restore.restore_home import Prepare, restore_to
from holdfast.cli.input.agent_places import (
    default_place,
    default_witness,
    path_of,
    paths_of,
    read_card_files,
    read_log_file,
    second_place,
    witnesses_of,
)
from holdfast.cli.input.input_sheet import read_given
from holdfast.cli.input.input_slots import new_slots, open_existing
from holdfast.cli.input.terminal import ask_line, confirm
from holdfast.cli.recover.show import PlannedRecovery, plan_json, show_loss, show_plan, show_survey, survey_json
from holdfast.cli.screen.progress import Progress
from holdfast.cli.screen.screen import one_line, print_fields, print_json, print_result, talk
from holdfast.cli.signals import run_async
from holdfast.core.clock import SystemClock, SystemEntropy, iso
from holdfast.core.journal_address import parse_journal_url
from holdfast.errors import BackupDamaged, BadInput, HoldfastError, NotNow
from holdfast.identity.acts.make_agent import check_unlock_files
from holdfast.identity.log.log_state import LogStanding
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.rescue import Rescue, read_key_file
from holdfast.identity.vault.vault import exists
from holdfast.layout.agent_home import ENVIRONMENT, home_in, root_folder
from holdfast.layout.witness_address import folders_of, relays_of
from holdfast.recovery.recover_agent import RecoveredAgent, RecoveryTarget, find_obstacle, recover_agent
from holdfast.recovery.recover_target import check_outside, check_same_agent, check_target, is_agents
from holdfast.recovery.rescued_copy import make_harmless
from holdfast.recovery.survey import Evidence, Survey, survey_evidence, with_own_places


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    if args.file and not args.to:
        raise BadInput("--file needs --to FOLDER")
    if args.rescue_key and (not args.to or args.keep_keys or args.start or args.journal):
        raise BadInput(
            "--rescue-key needs --to FOLDER: it gives a copy to look at, and recovers nothing",
            hint="to run the agent again, use its recovery words, or --keep-keys if its vault was not lost",
        )
    given = _given_folder(args)
    if not args.place and (given is None or not os.path.lexists(home_in(given) / "places.json")):
        args.place = [_ask_place()]
    at = None if args.at is None else _moment(args.at)
    with tempfile.TemporaryDirectory(prefix="holdfast-recover-") as scratch, Progress() as news:
        engine = run_async(open_engine(base=Path(scratch) / "borg", progress=news))
        # The places first: who types 24 words into nothing has typed them for nothing.
        sources = run_async(find_sources(engine, args.place, agent=args.agent, rsh=args.rsh))
        folder = given or Path.cwd() / _name_at(args, sources)
        sources = run_async(with_own_places(sources, folder, engine))
        name = args.agent or _one_name(sources) or folder.name.lower()
        if not args.to:
            check_target(folder, name=name)
        news.clear()
        evidence = _have(args, _vault(args, name))
        survey = run_async(survey_evidence(evidence, folder, engine=engine, port=Sodium(), at=at, sources=sources))
        name = args.agent or survey.name or name
        vault = _vault(args, name) if evidence.vault is None else evidence.vault.folder
        if not args.json:
            show_survey(survey)
        if not args.to:
            check_same_agent(folder, survey.log.id, name=name)
            check_outside(folder, _keys(args, name, vault))
        if args.dry_run:
            return _look_only(args, survey, folder, name, vault)
        if args.to:
            return _unpack(args, survey, news)
        _confirm_again(args, survey, vault)
        target = _target(args, folder, name, vault)
        if args.journal is not None:
            target = replace(target, journal_url=parse_journal_url(args.journal))
        _confirm(args, survey, folder)
        done = run_async(
            recover_agent(
                survey, evidence, target, clock=SystemClock(), entropy=SystemEntropy(), port=Sodium(), tell=news.say
            )
        )
    _report(args, survey, done, seconds=time.monotonic() - began)
    return _start(args, done) if args.start else 0


def _given_folder(args: argparse.Namespace) -> Path | None:
    """The agent's folder as a person named it, or the one that we are in; None: the place knows its name."""
    folder = root_folder(args.home)
    named = args.home or os.environ.get(ENVIRONMENT)
    return folder if named or (is_agents(folder) and folder != Path.home()) else None


def _one_name(sources: FoundPlaces) -> str:
    """The name of the agent whose backups were found; "" if there are several agents, or none is named."""
    names = {one.agent for one in sources.found}
    return names.pop() if len(names) == 1 else ""


def _name_at(args: argparse.Namespace, sources: FoundPlaces) -> str:
    if not sources.found and sources.failed:
        raise next(iter(sources.failed.values()))
    name = args.agent or _one_name(sources)
    if not name:
        names = sorted({one.agent for one in sources.found} - {""})
        what = f"the places have backups of several agents: {', '.join(names)}" if names else "no place names its agent"
        raise BadInput(what, hint="give --agent NAME")
    if "/" in name or name in (".", ".."):
        raise BadInput(f"--agent: {name!r} is not the name of an agent")
    return name


def _vault(args: argparse.Namespace, name: str) -> Path:
    return path_of(args.vault) if args.vault else default_place("vault", name)


def _second(args: argparse.Namespace, name: str) -> Path:
    return path_of(args.second) if args.second else default_place("second", name)


def _keys(args: argparse.Namespace, name: str, vault: Path) -> list[Path]:
    return [vault, _second(args, name), *folders_of(witnesses_of(args.new_witness) or (default_witness(name),))]


def _look_only(args: argparse.Namespace, survey: Survey, folder: Path, name: str, vault: Path) -> int:
    """Show what would happen. At the end, raises the error that would prevent it."""
    obstacle = find_obstacle(
        survey,
        vault=vault,
        keep_keys=args.keep_keys or bool(args.to),
        again=args.again,
        accept_older=args.accept_older or bool(args.to),
    )
    would = PlannedRecovery(folder=folder, vault=vault, second=_second(args, name), keep_keys=args.keep_keys)
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
    """Sheet and card, or sheet and the address of a relay, but no backup: only the identity can be recovered."""
    named = args.place or os.path.lexists(home_in(root_folder(args.home)) / "places.json")
    return bool(args.card or relays_of(witnesses_of(args.witness))) and not named and not args.keep_keys


def run_without_backup(args: argparse.Namespace) -> int:
    from holdfast.cli.identity.change import run_recover

    if args.dry_run or args.to or args.at or args.start:
        raise BadInput("no place was given, so there is nothing to restore", hint="give --place ADDRESS")
    talk("no place was given: this recovers the identity, without any state: no journal, no memory, no effect keys")
    folder = _given_folder(args)
    if folder is None and not args.agent:
        raise BadInput("neither card nor relay says which folder to make", hint="give --agent NAME or --home FOLDER")
    folder = folder or Path.cwd() / args.agent
    args.home, args.name = str(folder), args.agent or folder.name.lower()
    args.escrow = None
    if not args.witness and not args.new_witness:
        args.new_witness = [str(default_witness(args.name))]
    return run_recover(args)


def _ask_place() -> str:
    if not sys.stdin.isatty():
        raise BadInput(
            "no place was given",
            hint="give --place FOLDER or --place ssh://user@host/path; "
            "if there is no backup, --card FILE or --witness with a relay's address recovers the identity alone",
        )
    talk(
        "Where are the agent's backups? A folder, or ssh://user@host/path (see the recovery sheet or the public card)."
    )
    answer = ask_line("place: ").strip()
    if not answer:
        raise BadInput("no place was given: nothing was changed")
    return answer


def _have(args: argparse.Namespace, vault: Path) -> Evidence:
    evidence = Evidence(
        places=tuple(args.place),
        agent=args.agent,
        id=args.id,
        rsh=args.rsh,
        witnesses=witnesses_of(args.witness),
        copies=(*read_card_files(args.card), *(read_log_file(path_of(one)) for one in args.log)),
    )
    if args.rescue_key:
        return replace(evidence, rescue=read_key_file(path_of(args.rescue_key)))
    if args.keep_keys:
        if not exists(vault):
            raise BadInput(f"--keep-keys: there is no vault in {vault}", hint="give --vault DIR")
        opened = open_existing(vault, "--passphrase-fd", args.passphrase_fd, what="the vault")
        return replace(evidence, vault=opened)
    given = read_given(args)
    return replace(evidence, words=given.words, shares=given.shares, passphrase=given.passphrase)


def _target(args: argparse.Namespace, folder: Path, name: str, vault: Path) -> RecoveryTarget:
    target = RecoveryTarget(
        folder=folder,
        vault=vault,
        second=_second(args, name) if args.keep_keys else second_place(args.second, vault, name),
        arbiter=str(default_place("arbiter", name)),
        again=args.again,
        accept_older=args.accept_older,
    )
    if args.keep_keys:
        return target
    check_outside(folder, [target.second])
    check_unlock_files(folder, paths_of([one for one in (args.unlock_file, args.second_unlock_file) if one]))
    keys, second_keys = new_slots(args)
    return replace(
        target,
        keys=keys,
        second_keys=second_keys,
        spare_witness=default_witness(name),
        new_witnesses=witnesses_of(args.new_witness, args.invite),
    )


def _confirm_again(args: argparse.Namespace, survey: Survey, vault: Path) -> None:
    """An agent that was recovered before: a person at the terminal says that those keys are lost as well."""
    if args.keep_keys or args.again or args.yes or not sys.stdin.isatty():
        return
    obstacle = find_obstacle(survey, vault=vault, keep_keys=False, again=False, accept_older=True)
    if isinstance(obstacle, NotNow):
        confirm("again", f"{obstacle.message}. If that machine is lost or not yours, lock it out", yes=False)
        args.again = True


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
    report = run_async(
        restore_to(to, survey.means(Sodium()), _wish(args, survey), prepare=_prepare(survey, args.agent or to.name))
    )
    news.clear()
    if args.json:
        print_json({**msgspec.to_builtins(report), "key_used": survey.key_used})
    else:
        show_loss(report, said=not args.file)
        print(to)
    return BackupDamaged.exit_code if report.damaged else 0


def _prepare(survey: Survey, name: str) -> Prepare | None:
    """What a rescue key restores becomes a copy that is only read."""
    rescue = survey.opened
    if not isinstance(rescue, Rescue):
        return None

    async def prepare(folder: Path, _snapshot_at: int) -> None:
        make_harmless(folder, rescue, name=survey.name or name)

    return prepare


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
        "journal": str(done.home.journal),
        "journal_was": done.journal_was,
        "tables_left": list(done.tables_left),
        "places_left": list(done.left),
        "secrets_to_rotate": list(done.secrets),
        "published_at": list(done.told),
        "not_published_at": done.untold,
        "backup": _backup_json(done.backup),
        "secret_files": list(done.unsealed),
        "restore_s": round(done.restore_s, 3),
        "identity_s": round(done.identity_s, 3),
        "backup_s": round(done.backup_s, 3),
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
            ("first backup", _backup_text(done.backup)),
            (
                "time",
                f"restore {done.restore_s:.1f} s, identity {done.identity_s:.1f} s, backup {done.backup_s:.1f} s, "
                f"total {seconds:.1f} s",
            ),
        ]
    )
    _say_of_places(done, "the recovery")
    if restored is not None and restored.kept:
        talk(f"the old folder is now {restored.kept}")
    if restored is not None:
        show_loss(restored, said=True)
    if done.journal_was and not done.home.journal_url:
        talk(
            f"the journal was at {done.journal_was}; it is now the file {done.home.journal}. What that database has "
            "committed after the snapshot is not in it"
        )
    for table in done.tables_left:
        talk(
            f"WARNING: the table {table} of a Transactional tool is not in the database; it is in {done.tables_in}: "
            "move it yourself before you start the worker"
        )
    if done.unsealed:
        talk(f"secret files put back: {', '.join(map(one_line, done.unsealed))}")
    if done.secrets:
        talk("a thief of the old machine may know these secrets; replace their values: " + ", ".join(done.secrets))
    if done.evicted:
        talk("the words were typed on this machine: if it has a network, run `holdfast paper replace` soon")
    if not args.start:
        talk(f"next: holdfast worker APP {' '.join(_named(done))}")


def report_promoted(args: argparse.Namespace, done: RecoveredAgent) -> None:
    """The report of `holdfast instance promote`."""
    journal, restored = done.journal, done.restored
    fields: dict[str, object] = {
        "home": str(done.home.folder),
        "id": done.log.id,
        "position": list(done.log.position),
        "snapshot": None if restored is None else restored.seq,
        "incarnation": None if journal is None else journal.incarnation,
        "suspect_tasks": 0 if journal is None else journal.open_tasks,
        "kept": "" if restored is None else restored.kept,
        "published_at": list(done.told),
        "not_published_at": done.untold,
        "places_left": list(done.left),
        "backup": _backup_json(done.backup),
    }
    if args.json:
        print_json(fields)
        return
    fields["backup"] = _backup_text(done.backup)
    print_result(fields)
    _say_of_places(done, "the promotion")
    talk(
        "next: a waiting worker continues by itself; if none runs, start one: `holdfast worker APP`. Invite the "
        "other standbys again, with the new vault"
    )


def _say_of_places(done: RecoveredAgent, what: str) -> None:
    """What a person does about places that do not have what they should."""
    for name in done.left:
        talk(
            f"place {name} had only older snapshots and may have been rolled back: Holdfast no longer writes to "
            "it. Add a new folder: `holdfast place add NAME FOLDER`"
        )
    for name, why in done.untold.items():
        talk(f"WARNING: {what} could not be published at place {name}: {why}")
    if done.untold:
        talk("hint: the next `holdfast backup now` that reaches these places publishes it there")
    if isinstance(done.backup, HoldfastError) or not any(one.verified for one in done.backup.places):
        talk(f"next: make the first backup: holdfast backup now --home {shlex.quote(str(done.home.folder))}")


def _backup_text(backup: NowReport | HoldfastError) -> str:
    if isinstance(backup, HoldfastError):
        return f"FAILED: {backup.message}"
    good = [one.place for one in backup.places if one.verified]
    bad = [f"{one.place}: {one.message}" for one in backup.places if not one.verified]
    made = f"snapshot {backup.snapshot.seq} at {', '.join(good)}, restored for a test" if good else ""
    return "; ".join((*([made] if made else []), *(f"FAILED at {one}" for one in bad)))


def _backup_json(backup: NowReport | HoldfastError) -> object:
    if isinstance(backup, HoldfastError):
        return {"error": backup.code, "message": backup.message, "hint": backup.hint}
    return backup


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
    words = ["worker", args.start, *_named(done)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "holdfast", *words])


def _named(done: RecoveredAgent) -> list[str]:
    """The options that name its journal: its own settings know a url."""
    home = done.home
    return ["--home", str(home.folder)] if home.journal_url else ["--journal", str(home.journal)]


def _moment(text: str) -> int:
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"--at: {text!r} is not a time", hint="for example 2026-11-15 or 2026-11-15T14:30") from None
    if len(text) == len("2026-11-15"):
        when = when.replace(hour=23, minute=59, second=59)
    return int((when if when.tzinfo else when.replace(tzinfo=dt.UTC)).timestamp())
