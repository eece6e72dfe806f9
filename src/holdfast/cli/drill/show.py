"""`holdfast drill list`, `report`, `verify`, `sign` and `findings`: what was measured, and whether it is genuine."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from holdfast.cli.command import home_of
from holdfast.cli.input.agent_places import path_of, read_log_file
from holdfast.cli.screen.screen import ago, clock_time, finish, print_json, print_table, talk
from holdfast.core.clock import SystemClock, iso
from holdfast.drills.catalogue import DRILLS
from holdfast.drills.document.build import find_evidence_faults
from holdfast.drills.document.export import html, markdown
from holdfast.drills.document.signoff import check_signoff, sign_report
from holdfast.errors import BadInput, BadRecord, HoldfastError, ReportInvalid
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.log.log import replay
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.layout.agent_home import AgentHome
from holdfast.surfaces.report import (
    FOLDER,
    SealedReport,
    check_report,
    find_chain_faults,
    find_missing_faults,
    in_order,
    read_folder,
    read_report,
)

YEAR_MS = 366 * 86_400_000


def run_list(args: argparse.Namespace) -> int:
    good, faults = read_folder(home_of(args))
    newest = {one.report.scenario.drill: one.summary() for one in good}
    if args.json:
        drills = [
            {
                "drill": one.slug,
                "code": one.code,
                "title": one.title,
                "every_days": one.interval_days,
                "words": one.words,
                "last": newest.get(one.slug),
            }
            for one in DRILLS
        ]
        print_json({"drills": drills, "faults": faults})
        return 0
    rows: list[tuple[str, ...]] = []
    for one in DRILLS:
        last = newest.get(one.slug)
        seconds = "" if last is None or last.rto_s is None else f"{last.rto_s:g} s"
        when, verdict = ("never", "-") if last is None else (clock_time(last.ended_ms), last.verdict)
        rows.append(
            (one.slug, one.code, f"{one.interval_days} d", when, verdict, seconds, "words" if one.words else "")
        )
    print_table(("drill", "code", "every", "last", "verdict", "rto", "needs"), rows, empty="", state="verdict")
    _warn(faults)
    return 0


def run_report(args: argparse.Namespace) -> int:
    if args.index:
        return _index(args)
    found = _find(args, args.name)
    if args.json or args.format == "json":
        print_json(found.file)
    else:
        print(html(found) if args.format == "html" else markdown(found), end="")
    return 0


def _index(args: argparse.Namespace) -> int:
    good, faults = read_folder(home_of(args))
    since = SystemClock().wall_ms() - YEAR_MS
    year = [one.summary() for one in good if one.report.ended_ms >= since]
    proven = {one.slug for one in year if one.verdict in ("pass", "pass with findings")}
    missing = [one.slug for one in DRILLS if one.slug not in proven]
    if args.json:
        print_json({"reports": year, "not_proven": missing, "faults": faults})
        return 0
    rows = [
        (
            clock_time(one.ended_ms),
            one.slug,
            one.verdict,
            "" if one.rto_s is None else f"{one.rto_s:g} s",
            "" if one.rpo_s is None else f"{one.rpo_s:g} s, {one.rpo_items} items",
            str(one.findings),
        )
        for one in year
    ]
    head = ("ended", "drill", "verdict", "rto", "rpo", "findings")
    print_table(head, rows, empty="no drill ran; `holdfast drill run --quarterly` is the first one", state="verdict")
    talk(f"not proven in the last year: {', '.join(missing) or 'none'}")
    _warn(faults)
    return 0


def run_verify(args: argparse.Namespace) -> int:
    log = _log(args)
    paths = [path_of(one) for one in args.file] or _own_files(args)
    missing = [] if args.file or args.log else find_missing_faults(home_of(args), ())
    if not paths and not missing:
        raise BadInput("there is no report to verify", hint="give files, or run `holdfast drill run --quarterly` first")
    faults: list[str] = []
    good: list[SealedReport] = []
    people: dict[str, list[dict[str, str]]] = {}
    for path in paths:
        try:
            found = read_report(path)
            check_report(found, log, port=Sodium())
            allowed = path_of(args.allowed_signers) if args.allowed_signers else None
            people[found.report.id] = [
                {"role": one.role, "name": one.name, "key_id": check_signoff(found, one, allowed=allowed)}
                for one in found.file.signoff
            ]
            faults += find_evidence_faults(found, copied=bool(args.file))
            good.append(found)
        except HoldfastError as error:
            faults.append(error.message)
    faults += find_chain_faults(in_order(good), whole=not args.file)
    if not args.file:
        faults += find_missing_faults(home_of(args), good)
    shown = [
        {
            "id": one.report.id,
            "number": one.seal.record.n,
            "verdict": one.report.verdict,
            "people": people[one.report.id],
        }
        for one in in_order(good)
    ]
    if args.json:
        seen = {"newest_known": not args.file}
        print_json({"id": log.id, "good": not faults, "reports": shown, "faults": faults, **seen})
    else:
        for one in in_order(good):
            signers = ", ".join(f"{sign['name']} ({sign['key_id']})" for sign in people[one.report.id]) or "no person"
            talk(f"{one.report.id}: {one.report.verdict}; signed by {one.seal.record.id} and {signers}")
        _warn(faults)
        if args.file:
            talk("note: whether a newer report exists cannot be seen from these files; ask the agent's owner, or run")
            talk("`holdfast drill verify --home FOLDER` where the agent is")
    if faults:
        raise ReportInvalid(f"of {len(paths)} reports, {len(faults)} are not valid or missing: {faults[0]}")
    return 0


def _log(args: argparse.Namespace) -> KeyLog:
    if not args.log:
        return read_own_log(home_of(args).folder, Sodium())
    copy = read_log_file(path_of(args.log))
    try:
        log = replay(enumerate(copy.records, 1), enumerate(copy.receipts, 1), port=Sodium())
    except BadRecord as error:
        raise BadInput(error.message) from error
    if log is None or (args.id and args.id.lower() != log.id):
        raise BadInput(f"{args.log} is not the key log of {args.id or 'an agent'}")
    return log


def _own_files(args: argparse.Namespace) -> list[Path]:
    if args.log:
        raise BadInput(
            "--log needs the files of the reports", hint="for example: holdfast drill verify *.json --log FILE"
        )
    return sorted((home_of(args).folder / FOLDER).glob("*.json"))


def run_sign(args: argparse.Namespace) -> int:
    found = _find(args, args.name)
    when = iso(SystemClock().wall_ms())
    signed = sign_report(found, key=path_of(args.key), name=args.signer, role=args.role, time=when)
    made = signed.file.signoff[-1]
    fields = {"report": found.report.id, "role": made.role, "name": made.name, "key_id": made.key_id, "time": made.time}
    return finish(args, fields, f"{found.report.id}: signed by {made.name} with {made.key_id}")


def run_findings(args: argparse.Namespace) -> int:
    home = home_of(args)
    good, faults = read_folder(home)
    newest = {one.report.scenario.drill: one for one in good}
    found: list[dict[str, str]] = []
    for one in newest.values():
        report = one.report
        retest = f"holdfast drill run {report.scenario.drill} --home {shlex.quote(str(home.state))}"
        if report.verdict in ("fail", "not proven"):
            severity = "critical" if report.verdict == "fail" else "major"
            found.append(_finding(report.id, severity, f"{report.verdict}: {report.reason}", retest, report.ended_ms))
        found += [
            _finding(report.id, each.severity, each.description, retest, report.ended_ms) for each in report.findings
        ]
    if args.json:
        print_json({"findings": found, "faults": faults})
        return 0
    rows = [(one["report"], one["severity"], one["finding"], one["retest"]) for one in found]
    print_table(("report", "severity", "finding", "retest"), rows, empty="nothing was found", state="severity")
    _warn(faults)
    return 0


def _finding(report: str, severity: str, text: str, retest: str, ended_ms: int) -> dict[str, str]:
    age = ago(SystemClock().wall_ms() - ended_ms)
    return {"report": report, "severity": severity, "finding": text, "retest": retest, "age": age}


def _find(args: argparse.Namespace, name: str) -> SealedReport:
    """The report of this id or file; the newest one without a name."""
    if name.endswith(".json"):
        return read_report(path_of(name))
    home = home_of(args)
    if name:
        path = home.folder / FOLDER / f"{name}.json"
        if "/" in name or not path.exists():
            raise BadInput(f"there is no report {name!r}", hint="`holdfast drill report --index` lists them")
        return read_report(path)
    return _newest(home)


def _newest(home: AgentHome) -> SealedReport:
    good, faults = read_folder(home)
    _warn(faults)
    if not good:
        raise BadInput("there is no report yet", hint="`holdfast drill run --quarterly` writes the first one")
    return good[-1]


def _warn(faults: list[str]) -> None:
    for one in faults:
        talk(f"WARNING: {one}")
