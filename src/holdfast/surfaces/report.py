"""The report of a drill, `holdfast.drill/1`: its fields, the file that holds it, and reading it back.

    drills/2026-11-16-host-loss-7.json    the report, its certificate, its seal, and people's signatures
    drills/2026-11-16-host-loss-7.md      the same for people; so is .html. Neither is ever read

The JSON is canonical (RFC 8785): a changed byte is either not canonical or changes a digest. The seal (identity/
statements/drill_seal.py) covers the report, the chain of seals covers their order, and a person's signature covers the
seal. `null` says that a drill does not measure this; nothing is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.core.values import canonical
from holdfast.errors import BadRecord, HoldfastError, ReportInvalid
from holdfast.host.private_files import read_plain
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.certificate import Certificate, parse_certificate
from holdfast.identity.statements.drill_seal import DrillSeal, find_fault_in_drill_seal, follows, parse_drill_seal
from holdfast.layout.agent_home import AgentHome
from holdfast.surfaces.report_marks import find_missing, read_marks

SCHEMA = "holdfast.drill/1"
FOLDER = "drills"
FILE_BYTES_MAX = 16 << 20
Verdict = Literal["pass", "pass with findings", "fail", "not applicable", "not proven"]
Met = Literal["met", "missed", "not measured"]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a report. Every field is written, also one that is null."""


class Software(Part, frozen=True, kw_only=True):
    version: str
    commit: str  # of the source it runs from; empty: an installed package
    packages_digest: str  # of the names and versions of the installed packages


class Fault(Part, frozen=True, kw_only=True):
    at: str
    what: str
    how: str
    target: str


class Scenario(Part, frozen=True, kw_only=True):
    code: str
    drill: str
    narrative: str
    threat: str
    likelihood: str
    faults: tuple[Fault, ...]


class AgentInScope(Part, frozen=True, kw_only=True):
    id: str
    name: str
    level_before: int | None
    level_after: int | None


class Scope(Part, frozen=True, kw_only=True):
    agents: tuple[AgentInScope, ...]
    state_surfaces: tuple[str, ...]  # ids of the register that the drill recovers
    out_of_scope: tuple[str, ...]
    excluded: tuple[str, ...]
    why: str


class People(Part, frozen=True, kw_only=True):
    lead: str
    observers: tuple[str, ...]
    approver: str
    absent_simulated: tuple[str, ...]
    auditor: str


class RunbookUsed(Part, frozen=True, kw_only=True):
    name: str
    digest: str  # of the steps
    steps_followed: tuple[str, ...]
    steps_changed: tuple[str, ...]


class DrillTargets(Part, frozen=True, kw_only=True):
    rto_s: float | None
    rpo_s: float | None
    rpo_items: int | None
    mtd_s: float | None
    identity: str
    duplicates: int
    lost: int
    parked_max: int | None
    source: str


class Event(Part, frozen=True, kw_only=True):
    """`at_s` is monotonic, from the start of the drill; `at` is the wall clock."""

    name: str
    at: str
    at_s: float
    actor: str
    evidence: str


class Rto(Part, frozen=True, kw_only=True):
    target_s: float | None
    actual_s: float | None  # from `fault_injected` to `first_verified_step`
    detect_s: float | None
    declare_s: float | None
    restore_s: float | None
    reconcile_s: float | None
    verify_s: float | None
    hand_s: float  # what people typed before the clock began
    verdict: Met


class Commit(Part, frozen=True, kw_only=True):
    incarnation: int
    sequence: int
    at: str


class Rpo(Part, frozen=True, kw_only=True):
    target_s: float | None
    actual_s: float | None
    actual_items: int | None
    last_acked_commit: Commit | None
    last_recovered_commit: Commit | None
    lost_items: dict[str, int]  # by surface
    verdict: Met


NOT_MEASURED = Rpo(
    target_s=None,
    actual_s=None,
    actual_items=None,
    last_acked_commit=None,
    last_recovered_commit=None,
    lost_items={},
    verdict="not measured",
)


class Effects(Part, frozen=True, kw_only=True):
    before: int  # done at the far ends before the fault
    after: int
    far_end_counts: dict[str, int]
    duplicates: int
    lost: int
    unknown_resolved: dict[str, int]  # by asking, by key, by evidence
    parked: tuple[str, ...]
    adopted: tuple[str, ...]


class IdentityResult(Part, frozen=True, kw_only=True):
    agent_id_before: str
    agent_id_after: str
    challenge: str
    answer: str
    verifier: str
    witnesses_confirming: int
    incarnation_before: int | None
    incarnation_after: int | None
    old_instance_refused: bool | None
    same: bool


class StateResult(Part, frozen=True, kw_only=True):
    manifest_root_before: str
    manifest_root_after: str
    files_compared: int
    differing: tuple[str, ...]
    hash_chain_ok: bool | None
    prompt_prefix_equal: bool | None
    questions_asked: int | None
    questions_answered: int | None


NOT_COMPARED = StateResult(
    manifest_root_before="",
    manifest_root_after="",
    files_compared=0,
    differing=(),
    hash_chain_ok=None,
    prompt_prefix_equal=None,
    questions_asked=None,
    questions_answered=None,
)


class BackupResult(Part, frozen=True, kw_only=True):
    places: tuple[str, ...]
    archive: str
    age_s: float | None
    check_rc: int | None
    files_restored: int | None
    bytes: int | None
    seconds: float | None
    key_used: str


class ConnectivityResult(Part, frozen=True, kw_only=True):
    relays_up: int
    failover_s: float | None
    sent: int
    received: int
    lost: int


class ToolFiles(Part, frozen=True, kw_only=True):
    """What one tool left when it ran alone."""

    tool: str
    ran: Literal["function", "sandbox", "not run"]
    ended: str
    files: tuple[str, ...]  # outside of `run.scratch` and of what a backup covers


class Invariant(Part, frozen=True, kw_only=True, rename={"passed": "pass"}):
    code: str
    passed: bool
    evidence: str


class Results(Part, frozen=True, kw_only=True):
    rto: Rto
    rpo: Rpo
    effects: Effects | None
    identity: IdentityResult | None
    state: StateResult | None
    backup: BackupResult | None
    connectivity: ConnectivityResult | None
    invariants: tuple[Invariant, ...]
    files: tuple[ToolFiles, ...] | msgspec.UnsetType | None = msgspec.UNSET  # left out by reports of earlier versions


class Finding(Part, frozen=True, kw_only=True):
    severity: Literal["critical", "major", "minor"]
    description: str
    owner: str
    due: str
    ticket: str
    retest: str  # the command


class EvidenceFile(Part, frozen=True, kw_only=True):
    name: str
    sha256: str
    size: int
    kind: str


class Safety(Part, frozen=True, kw_only=True):
    blast_radius: str
    abort_criteria: str
    aborted: bool
    production_impact_s: float
    production_unchanged: bool
    cleanup_verified: bool


class DrillReport(Part, frozen=True, kw_only=True):
    schema: str
    id: str
    title: str
    version: int
    software: Software
    type: Literal["tabletop", "component", "functional", "full failover", "surprise"]
    environment: Literal["production", "shadow", "isolated"]
    infrastructure: str  # `fresh root`, `this machine`, or ssh://...
    key_used: Literal["words", "shares", "rescue key", "none"]
    planned_interval_days: int
    previous_drill: str  # its id; empty: this is the first
    started: str
    ended: str
    ended_ms: int
    seed: int
    scenario: Scenario
    scope: Scope
    people: People
    runbook: RunbookUsed
    targets: DrillTargets
    timeline: tuple[Event, ...]
    results: Results
    deviations: tuple[str, ...]
    findings: tuple[Finding, ...]
    lessons: str
    evidence: tuple[EvidenceFile, ...]
    safety: Safety
    verdict: Verdict
    reason: str  # why it is not a plain pass; empty where it is one


class SignOff(Part, frozen=True, kw_only=True):
    """A person's signature, made by ssh-keygen over `signoff_message`."""

    role: str
    name: str
    key_id: str  # fingerprint of the key, as `ssh-keygen -l` prints it
    time: str
    signature: str


class ReportFile(Part, frozen=True, kw_only=True):
    certificate: Any  # Any: a signed line, read by parse_certificate
    report: DrillReport
    seal: Any
    signoff: tuple[SignOff, ...] = ()


class DrillSummary(msgspec.Struct, frozen=True, kw_only=True):
    slug: str
    code: str
    verdict: Verdict
    ended_ms: int
    environment: str
    infrastructure: str
    key_used: str
    rto_s: float | None
    rpo_s: float | None
    rpo_items: int | None
    identity_same: bool | None
    path: str
    digest: str
    findings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedReport:
    """A report file as it was read; its signatures are not checked yet."""

    path: Path
    file: ReportFile
    certificate: Signed[Certificate]
    seal: Signed[DrillSeal]

    @property
    def report(self) -> DrillReport:
        return self.file.report

    def summary(self) -> DrillSummary:
        return summarize(self.report, path=str(self.path), digest=self.seal.digest)


def summarize(report: DrillReport, *, path: str, digest: str) -> DrillSummary:
    rto, rpo, identity = report.results.rto, report.results.rpo, report.results.identity
    return DrillSummary(
        slug=report.scenario.drill,
        code=report.scenario.code,
        verdict=report.verdict,
        ended_ms=report.ended_ms,
        environment=report.environment,
        infrastructure=report.infrastructure,
        key_used=report.key_used,
        rto_s=rto.actual_s,
        rpo_s=rpo.actual_s,
        rpo_items=rpo.actual_items,
        identity_same=None if identity is None else identity.same,
        path=path,
        digest=digest,
        findings=len(report.findings),
    )


def report_bytes(report: DrillReport) -> bytes:
    """What the seal's digest is over."""
    return canonical(msgspec.to_builtins(report))


def file_bytes(file: ReportFile) -> bytes:
    return canonical(msgspec.to_builtins(file)) + b"\n"


def signoff_message(seal: Signed[DrillSeal], *, role: str, name: str, time: str) -> bytes:
    """What a person signs: the seal, so the report and its place in the chain, and who says it when."""
    return canonical({"holdfast": "drill", "name": name, "role": role, "seal": seal.digest, "time": time})


def parse_report(raw: bytes, path: Path) -> SealedReport:
    """The report in these bytes. Raises ReportInvalid where they are not canonical, lack a field or have another one,
    or where the seal is of another report."""
    if len(raw) > FILE_BYTES_MAX:
        raise ReportInvalid(f"{path}: it has more than {FILE_BYTES_MAX:,} bytes")
    try:
        file = decode_json(raw, ReportFile)
        certificate = parse_certificate(canonical(file.certificate))
        seal = parse_drill_seal(canonical(file.seal))
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise ReportInvalid(f"{path}: it is not a drill report: {error}") from None
    except BadRecord as error:
        raise ReportInvalid(f"{path}: {error.message}") from None
    if file_bytes(file) != raw:
        raise ReportInvalid(f"{path}: its bytes are not in canonical form")
    if digest_of(report_bytes(file.report)) != seal.record.report or seal.record.drill != file.report.scenario.drill:
        raise ReportInvalid(f"{path}: the seal is of another report: this one was changed")
    return SealedReport(path=path, file=file, certificate=certificate, seal=seal)


def read_report(path: Path) -> SealedReport:
    try:
        return parse_report(read_plain(path, FILE_BYTES_MAX + 1), path)
    except OSError as error:
        raise ReportInvalid(f"{path} cannot be read: {error.strerror}") from error


def check_report(found: SealedReport, log: KeyLog, *, port: Signatures) -> None:
    """Its signatures are the agent's. Raises ReportInvalid."""
    fault = find_fault_in_drill_seal(found.seal, found.certificate, log, port=port)
    if fault is not None:
        raise ReportInvalid(f"{found.path}: {fault.message}")


def find_chain_faults(reports: Sequence[SealedReport], *, whole: bool) -> list[str]:
    """What breaks the chain of these reports, in the order of their numbers; `whole`: they are all there are."""
    faults: list[str] = []
    before: SealedReport | None = None
    for one in reports:
        if before is None and not whole:
            pass
        elif not follows(one.seal, None if before is None else before.seal):
            after = "the first report" if before is None else f"report {before.seal.record.n}"
            faults.append(
                f"{one.path.name}: report {one.seal.record.n} does not follow {after}: one is missing or changed"
            )
        before = one
    return faults


def in_order(reports: Sequence[SealedReport]) -> list[SealedReport]:
    return sorted(reports, key=lambda one: (one.seal.record.n, str(one.path)))


def read_folder(home: AgentHome) -> tuple[list[SealedReport], list[str]]:
    """The reports of this agent that count, oldest first: signed by it, and each after the one before. And what is
    wrong with the others, or missing."""
    faults: list[str] = []
    read: list[SealedReport] = []
    folder = home.folder / FOLDER
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    port = Sodium()
    log = read_own_log(home.folder, port) if paths else None
    for path in paths:
        try:
            found = read_report(path)
            assert log is not None
            check_report(found, log, port=port)
            read.append(found)
        except HoldfastError as error:
            faults.append(error.message)
    good: list[SealedReport] = []
    for one in in_order(read):
        if follows(one.seal, good[-1].seal if good else None):
            good.append(one)
        else:
            faults += find_chain_faults([*good[-1:], one], whole=not good)
    return good, [*faults, *find_missing_faults(home, read)]


def find_missing_faults(home: AgentHome, reports: Sequence[SealedReport]) -> list[str]:
    """Which reports this host has sealed and are not among these; of the newest one the chain shows nothing."""
    try:
        missing = find_missing(read_marks(home), (one.seal.digest for one in reports))
    except ValueError as error:
        return [str(error)]
    return [f"report {one.n}, {one.id} ({one.verdict}), is missing" for one in missing]


def read_reports(home: AgentHome) -> tuple[DrillSummary, ...]:
    """Those whose signature and chain verify, oldest first."""
    return tuple(one.summary() for one in read_folder(home)[0])


def sha256_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
