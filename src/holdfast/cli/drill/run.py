"""`holdfast drill run` and `schedule`."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from holdfast.app.notify import with_pings
from holdfast.backup.places.rescue_file import read_register
from holdfast.cli.command import home_of
from holdfast.cli.input.agent_places import path_of
from holdfast.cli.input.input_sheet import read_given
from holdfast.cli.input.terminal import ask_line
from holdfast.cli.screen.screen import one_line, print_json, talk
from holdfast.cli.signals import Ended
from holdfast.core.clock import SystemClock
from holdfast.drills.catalogue import DRILLS, SETS, Drill, get_drill
from holdfast.drills.execute import DrillDone, run_drill
from holdfast.drills.far.machine import parse_target
from holdfast.drills.run import DrillKey, DrillOrder, DrillRun
from holdfast.errors import EXIT_FAILED, EXIT_UNRESOLVED, BadInput, BadPhrase, BadShare, HoldfastError, NotProven
from holdfast.identity.acts.paper_acts import find_phrase
from holdfast.identity.files.own_log import find_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.speaker.open_speaker import open_speaker
from holdfast.identity.vault.rescue import read_key_file
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.rescued import check_not_rescued
from holdfast.surfaces.level import SKEW_MS
from holdfast.surfaces.report import read_reports

DAY_MS = 86_400_000
FAR = ("host-loss", "test-restore")
OWN = tuple(one.slug for one in DRILLS if one.on_production is not None)


def run(args: argparse.Namespace) -> int:
    """A timer's run calls the ping of [watch]."""
    home = home_of(args)
    return with_pings(home.settings.watch.ping if args.due else "", lambda: _run(args, home), warn=talk)


def _run(args: argparse.Namespace, home: AgentHome) -> int:
    check_not_rescued(home.folder)
    if sum(map(bool, (args.on, args.stand, args.production))) > 1:
        raise BadInput("--on, --stand and --production exclude each other", hint="give one of them")
    drills = _chosen(args, home)
    on = parse_target(args.on) if args.on else ""
    for one in drills:
        if args.stand and one.on_stand is None:
            raise BadInput(f"--stand: {one.slug} keeps no copy", hint="only host-loss and test-restore do")
        if on and one.slug not in FAR:
            raise BadInput(f"--on: {one.slug} restores nothing on another machine", hint=f"only {' and '.join(FAR)} do")
    if not drills:
        return _finish(args, [])
    if args.production:
        _confirm_production(drills, home)
    key = _key(args, home) if any(one.words for one in drills) else None
    rescue = DrillKey(kind="rescue key", file=_rescue_key(path_of(args.rescue_key), home)) if args.rescue_key else None
    try:
        speaker = open_speaker(home, SystemClock())
        speaker.log()
    except HoldfastError as error:
        raise NotProven(f"the report could not be signed: {error.message}", hint=error.hint) from error
    folder = path_of(args.folder) if args.folder else Path.home() / ".cache" / "holdfast" / "drills" / home.name
    seed = secrets.randbits(32) if args.seed is None else args.seed
    done: list[DrillDone] = []
    with _ended_by_signals():
        for drill in drills:
            if not args.json:
                talk(f"{drill.code} {drill.title} ({drill.slug}), seed {seed}")
            order = DrillOrder(
                home=home,
                folder=folder,
                speaker=speaker,
                key=key if drill.words else rescue if drill.reads else None,
                place=args.place,
                seed=seed,
                lead=args.lead,
                observe=(lambda _run, _event: None) if args.json else _show,
                tell=talk,
                on=on,
                rsh=args.rsh,
                production=args.production,
                stand=args.stand,
                rescue_key=None if rescue is None else rescue.file,
            )
            try:
                done.append(run_drill(drill, order))
            except HoldfastError:
                if done:
                    _finish(args, done)  # what was measured before this one
                raise
            if not args.json:
                _tell(done[-1])
    return _finish(args, done)


def _rescue_key(file: Path, home: AgentHome) -> Path:
    """The file, if it holds a key of this agent that counts. Raises NotProven: another key says nothing of backups."""
    another = "`holdfast rescue add FILE` makes one"
    try:
        with read_key_file(file) as key:
            entry = next((one for one in read_register(home) if one.recipient == key.identity.recipient), None)
    except HoldfastError as error:
        raise NotProven(f"{error.code}: {error.message}", hint=error.hint or another) from error
    if entry is None:
        raise NotProven(f"{file} holds no rescue key of this agent", hint=another)
    if entry.revoked_ms:
        raise NotProven(f"the rescue key {entry.name!r} in {file} was revoked", hint=another)
    return file


def _confirm_production(drills: list[Drill], home: AgentHome) -> None:
    """A person types the agent's name. There is no option that answers this. Raises BadInput."""
    for one in drills:
        if one.on_production is None:
            raise BadInput(f"--production: {one.slug} runs in a shadow alone", hint=f"only {' and '.join(OWN)} may")
    if not sys.stdin.isatty():
        raise BadInput("--production asks for the agent's name, and stdin is not a terminal", hint="run it yourself")
    names = ", ".join(one.slug for one in drills)
    talk(f"{names}: on production, {home.name} in {home.folder}. Work that is under way is interrupted, then resumed.")
    if ask_line(f"type {home.name!r} to continue: ").strip() != home.name:
        raise BadInput("not confirmed: nothing was done", hint=f"type {home.name!r}")


def _chosen(args: argparse.Namespace, home: AgentHome) -> list[Drill]:
    sets = [name for name in SETS if getattr(args, name)]
    if args.due and (sets or args.name):
        given = f"--{sets[0]}" if sets else "the name of a drill"
        raise BadInput(f"--due and {given} exclude each other", hint="--due chooses by the age of the newest reports")
    slugs = [get_drill(name).slug for name in args.name]
    for name, members in SETS.items():
        if getattr(args, name):
            slugs += members
    if args.due:
        slugs += _due(home)
    elif not slugs:
        raise BadInput("no drill was named", hint="name one, or give --quarterly, --daily, --deploy or --all")
    return [get_drill(slug) for slug in dict.fromkeys(slugs)]


def _due(home: AgentHome) -> Iterator[str]:
    """Drills whose newest report is older than their interval, and that run without a person. A report of the future
    was written by a wrong clock: it puts nothing off."""
    now_ms = SystemClock().wall_ms()
    newest = {one.slug: one.ended_ms for one in read_reports(home) if one.ended_ms <= now_ms + SKEW_MS}
    for one in DRILLS:
        if not one.words and now_ms - newest.get(one.slug, 0) >= one.interval_days * DAY_MS:
            yield one.slug


def _key(args: argparse.Namespace, home: AgentHome) -> DrillKey | None:
    """The words or shares, checked against the agent's log before anything runs. Raises NotProven for wrong ones."""
    if args.words_fd is None and not sys.stdin.isatty():
        return None
    began = time.monotonic()
    given = read_given(args)
    hand_s = time.monotonic() - began
    log = find_own_log(home.folder, Sodium())
    try:
        if log is not None:
            phrase, change = find_phrase([log], words=given.words, shares=given.shares, passphrase=given.passphrase)
            phrase.wipe()
            if change:
                talk(f"corrected a wrong word: {change}; check the sheet")
    except (BadPhrase, BadShare) as error:
        raise NotProven(f"the words are not those of this agent: {error.message}", hint=error.hint) from error
    typed = [("--words-fd", given.words or "\n".join(given.shares))]
    if given.passphrase:
        typed.append(("--sheet-passphrase-fd", given.passphrase))
    return DrillKey(kind="shares" if given.shares else "words", typed=tuple(typed), hand_s=hand_s)


def _show(run: DrillRun, event: str) -> None:
    last = run.events[-1]
    talk(f"{last.at_s:8.1f} s  {event.replace('_', ' ')}: {one_line(last.evidence, chars_max=160)}")


def _tell(done: DrillDone) -> None:
    report = done.report
    for one in report.results.invariants:
        if not one.passed:
            talk(f"    NOT kept: {one.code}: {one_line(one.evidence, chars_max=200)}")
    rto, rpo = report.results.rto.actual_s, report.results.rpo
    figures = [f"recovery time {rto:g} s"] if rto is not None else []
    figures += [f"lost {rpo.actual_s:g} s, {rpo.actual_items} items"] if rpo.actual_s is not None else []
    why = f": {report.reason}" if report.reason else ""
    talk(f"{report.scenario.drill}: {report.verdict}{why}" + (f" ({'; '.join(figures)})" if figures else ""))
    talk(f"report: {done.path}")


def _finish(args: argparse.Namespace, done: list[DrillDone]) -> int:
    if args.json:
        print_json({"drills": [_shape(one) for one in done]})
    elif not done:
        talk("nothing is due")
    verdicts = {one.report.verdict for one in done}
    if "fail" in verdicts:
        return EXIT_FAILED
    if "not proven" in verdicts or (done and verdicts <= {"not applicable"}):
        return EXIT_UNRESOLVED
    return 0


def _shape(done: DrillDone) -> dict[str, object]:
    report = done.report
    identity = report.results.identity
    return {
        "id": report.id,
        "drill": report.scenario.drill,
        "code": report.scenario.code,
        "verdict": report.verdict,
        "reason": report.reason,
        "rto_s": report.results.rto.actual_s,
        "rpo_s": report.results.rpo.actual_s,
        "rpo_items": report.results.rpo.actual_items,
        "identity_same": None if identity is None else identity.same,
        "findings": len(report.findings),
        "seed": report.seed,
        "report": str(done.path),
    }


@contextmanager
def _ended_by_signals() -> Generator[None]:
    """SIGTERM and SIGHUP clean up as Ctrl-C does."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise Ended(signal.Signals(number))

    old = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def run_schedule(args: argparse.Namespace) -> int:
    from holdfast.backup.upkeep.scheduled import make_drill_schedule
    from holdfast.cli.backup.backup import print_schedule

    home = home_of(args)
    schedule = make_drill_schedule(home.folder, agent=home.name)
    hint = "`holdfast identity add-unlock --unlock-file FILE`"
    return print_schedule(args, home, schedule, lost="drill will run", hint=hint)
