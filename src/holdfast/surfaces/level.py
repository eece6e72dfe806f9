"""The level of an agent, 0 to 4, and whether it is proven: a pure function of dated facts.

A gate is one thing that must be so. Gates of a level say that the agent *has* it; gates of proof say that it was tried,
and they expire. The level is the highest whose gates, and all below, hold; it is proven where the gates of proof up to
it hold too. No gate can be set by hand: it looks at facts alone, and facts are found by looking (`core/surfaces.py`).

Laws, tested over random sets of facts: more evidence never lowers anything, and older evidence never raises anything.
Four kinds of facts are not evidence but duties, and may lower: that there is a place, that it is not there now, that a
snapshot waits for its test restore, and that a drill failed or lost something. A fact that is dated in the future was
written by a wrong clock and counts for nothing.

Facts by name (`about` in brackets):

    state.on-disk, state.resumes          the agent's folder is not in memory; it has something to resume from
    place [name]                          there is a place; its value is what fails together with it
    place.device [name]                   the disk or host that it is on
    place.away [name]                     it is a folder and not there now, and why
    place.off [name]                      it is on another disk or host than the agent
    place.made [name]                     an encrypted snapshot was stored there
    place.verified [name]                 the newest one that was restored and compared; dated by when it was *made*
    place.unverified [name]               a newer one was not restored yet; dated likewise
    place.escrow [name]                   escrow.age is beside it
    identity.log, identity.keys-apart     the key log is valid; the keys are not in the agent's folder
    identity.witnessed                    enough witnesses hold the newest record of the key log
    paper, paper.read-back                a sheet, or enough shares, exist; were read back
    journal.shared, instances.alive       the journal is on a server; so many hosts have a live worker
    relay [url]                           its operator, if it holds the agent's newest profile; else empty
    drill [slug]                          True: passed, False: failed, or its report was removed
    drill.lost [slug]                     items that were lost in it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.core.surfaces import DAY_MS, HOUR_MS, Fact, Targets, age_text, day_of

# Name, and what it means in the words of the hierarchy.
LEVELS: tuple[tuple[str, str], ...] = (
    ("ephemeral", "No persistence. Agent dies: everything is gone."),
    ("file-backed", "State persists to disk. Agent restarts: picks up where it left off."),
    ("backed up", "State and backups (encrypted, offsite). Server dies: restore from backup."),
    ("identity-portable", "Keys stored separately from state. Identity survives infrastructure loss."),
    ("distributed", "Multi-instance coordination. One instance fails: others continue."),
)
LEVEL_MAX = len(LEVELS) - 1
VERIFY_MS = 24 * HOUR_MS
PAPER_DAYS = 90
RESTORE_DAYS = 90
TAKEOVER_DAYS = 30
PLACES_MIN = 2
INSTANCES_MIN = 2
RELAYS_MIN, OPERATORS_MIN = 3, 2
RELAY_DAYS = 90
ADD = "holdfast place add NAME ADDRESS"
RELAY = "holdfast relay add ADDRESS"
MISSING = "missing"  # a source of the fact `drill` begins so where its report was removed
SKEW_MS = 10 * 60_000  # of a clock that is set by the network


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate says of the facts."""

    ok: bool
    evidence: str = ""  # where it holds
    evidence_ms: int | None = None
    until_ms: int | None = None  # when it expires; None: not by time
    why: str = ""  # where it does not hold
    fix: str = ""  # the command; of a gate that holds and expires: the one that renews it


class Gate(NamedTuple):
    id: str
    level: int | None  # None: no number depends on it
    proof: bool
    text: str
    judge: Callable[[Facts], Judged]


class GateResult(Judged, frozen=True, kw_only=True):
    id: str
    level: int | None
    proof: bool
    text: str


class LevelReport(msgspec.Struct, frozen=True, kw_only=True):
    level: int
    name: str
    meaning: str
    proven: bool  # at this level
    proven_level: int  # the highest level up to this one that is proven
    proven_until_ms: int | None  # of `proven_level`; None: not by time
    text: str  # "level 3, unproven: no restore drill for 112 days"
    gates: tuple[GateResult, ...]
    next: GateResult | None  # the gate to see to first, with its command


class Facts:
    """Facts by name, as gates ask for them. Those of the future are left out."""

    def __init__(self, facts: Iterable[Fact], *, now_ms: int, targets: Targets) -> None:
        self.now_ms, self.targets = now_ms, targets
        self._by_name: dict[str, list[Fact]] = {}
        for one in facts:
            if one.at_ms is None or one.at_ms <= now_ms + SKEW_MS:
                self._by_name.setdefault(one.name, []).append(one)

    def all(self, name: str) -> list[Fact]:
        return self._by_name.get(name, [])

    def newest(self, name: str) -> dict[str, Fact]:
        """The newest fact of this name about each thing. Of two at one moment the one that says less counts."""
        found: dict[str, Fact] = {}
        for one in sorted(self.all(name), key=lambda fact: (fact.at_ms or 0, not fact.value)):
            found[one.about] = one
        return found

    def best(self, name: str) -> Fact | None:
        """The newest fact of this name that says yes."""
        return max((one for one in self.all(name) if one.value), key=lambda one: one.at_ms or 0, default=None)

    def values(self, name: str) -> dict[str, str]:
        return {about: str(one.value) for about, one in self.newest(name).items()}


def judge_level(
    facts: Iterable[Fact], *, now_ms: int, targets: Targets, gates: Sequence[Gate] | None = None
) -> LevelReport:
    """The level that these facts give, every gate with its evidence, and the one next action."""
    known = Facts(facts, now_ms=now_ms, targets=targets)
    results = tuple(_result(gate, known) for gate in (GATES if gates is None else gates))
    level = _highest(results, proof=False, most=LEVEL_MAX)
    proven_level = _highest(results, proof=True, most=level)
    proven = proven_level == level
    ends = [one.until_ms for one in _of(results, proof=True, most=proven_level) if one.until_ms is not None]
    until_ms = min(ends, default=None)
    name, meaning = LEVELS[level]
    return LevelReport(
        level=level,
        name=name,
        meaning=meaning,
        proven=proven,
        proven_level=proven_level,
        proven_until_ms=until_ms,
        text=_text(results, level, proven_level, until_ms),
        gates=results,
        next=find_next(results),
    )


def find_next(results: Sequence[GateResult]) -> GateResult | None:
    """The failing gate to see to first: the lowest level first, what it has before its proof; then those beside."""
    failing = [one for one in results if not one.ok]
    return min(failing, key=lambda one: (LEVEL_MAX + 1 if one.level is None else one.level, one.proof), default=None)


def _result(gate: Gate, facts: Facts) -> GateResult:
    found = msgspec.structs.asdict(gate.judge(facts))
    return GateResult(id=gate.id, level=gate.level, proof=gate.proof, text=gate.text, **found)


def _of(results: Sequence[GateResult], *, proof: bool, most: int) -> list[GateResult]:
    return [one for one in results if one.proof is proof and one.level is not None and one.level <= most]


def _highest(results: Sequence[GateResult], *, proof: bool, most: int) -> int:
    failing = [one.level for one in _of(results, proof=proof, most=most) if not one.ok and one.level is not None]
    return min(failing, default=most + 1) - 1


def _text(results: Sequence[GateResult], level: int, proven_level: int, until_ms: int | None) -> str:
    if level <= 1:
        return f"level {level}"  # nothing of these two expires
    until = "" if until_ms is None else f" until {day_of(until_ms)}"
    if proven_level == level:
        return f"level {level}, proven{until}"
    first = next(one for one in _of(results, proof=True, most=level) if not one.ok)
    below = f"; level {proven_level} is proven{until}" if proven_level > 1 else ""
    return f"level {level}, unproven: {first.why}{below}"


# the gates


def _yes(name: str, *, why: str, fix: str) -> Callable[[Facts], Judged]:
    """Holds where a fact of this name says yes."""

    def judge(facts: Facts) -> Judged:
        found = facts.best(name)
        if found is None:
            no = next((one for one in facts.newest(name).values() if not one.value), None)
            return Judged(ok=False, why=why if no is None else no.source, fix=fix)
        return Judged(ok=True, evidence=found.source, evidence_ms=found.at_ms)

    return judge


def _within(found: Fact | None, days: int, facts: Facts, *, what: str, fix: str) -> Judged:
    """Holds for so many days after the fact."""
    if found is None or found.at_ms is None:
        return Judged(ok=False, why=f"no {what} yet", fix=fix)
    until_ms, age_ms = found.at_ms + days * DAY_MS, facts.now_ms - found.at_ms
    if age_ms > days * DAY_MS:
        return Judged(ok=False, evidence_ms=found.at_ms, why=f"no {what} for {age_text(age_ms)}", fix=fix)
    return Judged(ok=True, evidence=found.source, evidence_ms=found.at_ms, until_ms=until_ms, fix=fix)


def _here(facts: Facts, name: str) -> list[Fact]:
    """The facts of this name about places that are not away now."""
    away = facts.newest("place.away")
    return [one for one in facts.all(name) if one.value and one.about not in away]


def _absent(facts: Facts) -> Judged | None:
    """Where a place that has something is not there now: that is what a person should see to first."""
    known = {one.about for one in facts.all("place.made")}
    away = {name: str(one.value) for name, one in facts.newest("place.away").items()}
    name = min(away, key=lambda one: (one not in known, one), default=None)
    if name is None:
        return None
    return Judged(ok=False, why=f"{name}: {away[name]}", fix=f"holdfast place check {name}")


def _snapshot(facts: Facts) -> Judged:
    off = {one.about for one in _here(facts, "place.off")}
    found = [one for one in _here(facts, "place.made") if one.about in off]
    made = max(found, key=lambda one: one.at_ms or 0, default=None)
    if made is not None:
        return Judged(ok=True, evidence=made.source, evidence_ms=made.at_ms)
    if (absent := _absent(facts)) is not None:
        return absent
    if off:
        return Judged(ok=False, why="no snapshot is off the machine yet", fix="holdfast backup now")
    why = "every place is on the agent's own disk or in memory" if facts.all("place") else "there is no place"
    return Judged(ok=False, why=why, fix=ADD)


def _restored(facts: Facts) -> Judged:
    fix = "holdfast backup now"
    best = max(_here(facts, "place.verified"), key=lambda one: one.at_ms or 0, default=None)
    if best is None and (absent := _absent(facts)) is not None:
        return absent
    if best is None:
        return Judged(ok=False, why="no snapshot was ever restored for a test", fix=fix)
    waiting = [one.at_ms + VERIFY_MS for one in facts.all("place.unverified") if one.at_ms is not None]
    until_ms = min(waiting, default=None)
    if until_ms is not None and until_ms < facts.now_ms:
        old = age_text(facts.now_ms - until_ms + VERIFY_MS)
        return Judged(ok=False, why=f"a snapshot of {old} ago was not restored for a test", fix=fix)
    return Judged(ok=True, evidence=best.source, evidence_ms=best.at_ms, until_ms=until_ms)


def _domains(facts: Facts) -> Judged:
    labels, devices = facts.values("place"), facts.values("place.device")
    verified = {one.about: one for one in _here(facts, "place.verified") if one.about in labels}
    names = sorted(verified)
    for first in names:
        for second in names:
            if labels[first] != labels[second] and len({devices.get(first, ""), devices.get(second, ""), ""}) == 3:
                evidence = f"{first} ({labels[first]}) and {second} ({labels[second]})"
                return Judged(ok=True, evidence=evidence, evidence_ms=verified[first].at_ms)
    if len(labels) < PLACES_MIN:
        why, fix = "there are not two places", f"{ADD} --domain DOMAIN"
    elif (absent := _absent(facts)) is not None:
        return absent
    elif len(names) < PLACES_MIN:
        why, fix = "not two places hold a snapshot that was restored for a test", "holdfast backup now"
    else:
        why = f"{', '.join(names)} are on one device or share a failure domain"
        fix = f"{ADD} --domain DOMAIN"
    return Judged(ok=False, why=why, fix=fix)


def _rpo(facts: Facts) -> Judged:
    places, verified, rpo_ms = facts.values("place"), facts.newest("place.verified"), facts.targets.rpo_s * 1000
    ages = {name: facts.now_ms - (one.at_ms or 0) for name, one in verified.items() if one.value and name in places}
    fix = "holdfast backup now"
    if not places:
        return Judged(ok=False, why="there is no place", fix=ADD)
    missing = sorted(places.keys() - ages.keys())
    if missing and (absent := _absent(facts)) is not None:
        return absent
    if missing:
        return Judged(ok=False, why=f"{', '.join(missing)}: no snapshot was restored for a test", fix=fix)
    name = max(ages, key=lambda one: ages[one])
    if ages[name] > rpo_ms:
        old = age_text(ages[name])
        why = f"{name}: its newest tested snapshot is {old} old; the target is {facts.targets.rpo_s:,} s"
        return Judged(ok=False, why=why, fix=fix)
    oldest_ms = facts.now_ms - ages[name]
    evidence = f"the oldest is that of {name}, {age_text(ages[name])} old"
    return Judged(ok=True, evidence=evidence, evidence_ms=oldest_ms, until_ms=oldest_ms + rpo_ms, fix=fix)


def _escrow(facts: Facts) -> Judged:
    names = sorted({one.about for one in _here(facts, "place.escrow")})
    if len(names) >= PLACES_MIN:
        return Judged(ok=True, evidence=f"beside {', '.join(names)}")
    if (absent := _absent(facts)) is not None:
        return absent
    fix = "holdfast backup now" if len(facts.values("place")) >= PLACES_MIN else ADD
    return Judged(ok=False, why=f"escrow.age is beside {len(names)} of 2 places", fix=fix)


def _read_back(facts: Facts) -> Judged:
    found, fix = facts.best("paper.read-back"), "holdfast paper verify"
    return _within(found, PAPER_DAYS, facts, what="sheet was read back", fix=fix)


def _drilled(slug: str, days: int, what: str) -> Callable[[Facts], Judged]:
    def judge(facts: Facts) -> Judged:
        newest, fix = facts.newest("drill").get(slug), f"holdfast drill run {slug}"
        if newest is not None and not newest.value:
            missing = newest.source.startswith(MISSING)
            why = f"the report of the newest {what} is missing" if missing else f"the newest {what} failed"
            return Judged(ok=False, evidence_ms=newest.at_ms, why=why, fix=fix)
        return _within(newest, days, facts, what=what, fix=fix)

    return judge


def _nothing_lost(facts: Facts) -> Judged:
    fix = "holdfast drill run region-loss"
    counted = [one for one in facts.all("drill.lost") if one.about == "region-loss"]
    lost = max(counted, key=lambda one: (one.at_ms or 0, int(one.value)), default=None)
    if lost is not None and lost.value:
        return Judged(ok=False, why=f"the newest takeover drill lost {lost.value} items", fix=fix)
    return _within(lost, TAKEOVER_DAYS, facts, what="takeover drill that counted losses", fix=fix)


def _instances(facts: Facts) -> Judged:
    alive = max((int(one.value) for one in facts.all("instances.alive")), default=0)
    if alive >= INSTANCES_MIN:
        return Judged(ok=True, evidence=f"{alive} hosts have a live worker")
    return Judged(ok=False, why=f"hosts with a live worker: {alive}", fix="holdfast instance invite NAME FILE")


def _relays(facts: Facts) -> Judged:
    well = {about: str(one.value) for about, one in facts.newest("relay").items() if one.value}
    operators = sorted(set(well.values()))
    if len(well) >= RELAYS_MIN and len(operators) >= OPERATORS_MIN:
        return Judged(ok=True, evidence=f"{len(well)} relays of {', '.join(operators)}")
    if len(well) >= RELAYS_MIN:
        return Judged(ok=False, why=f"all relays depend on {operators[0]}", fix=RELAY)
    known = len(facts.newest("relay"))
    why = f"{len(well)} of {known} relays hold the newest profile" if known else "the agent has no relays"
    return Judged(ok=False, why=why, fix=RELAY if known < RELAYS_MIN else "holdfast relay doctor")


_INIT = "holdfast init NAME --home FOLDER"
_COPY = "holdfast journal copy --to postgresql://USER@HOST/DATABASE"
_on_disk = _yes("state.on-disk", why="there is no agent here", fix=_INIT)
_resumes = _yes("state.resumes", why="there is no journal yet", fix="holdfast memory add TEXT")
_identity = _yes("identity.log", why="the agent has no identity", fix=_INIT)
_keys_apart = _yes("identity.keys-apart", why="the agent has no vault", fix=_INIT)
_paper = _yes("paper", why="no sheet was printed", fix="holdfast paper print")
_shared = _yes("journal.shared", why="the journal is a file", fix=_COPY)
_witnessed = _yes("identity.witnessed", why="no witness was asked", fix="holdfast identity show --fetch")
_fresh = _drilled("host-loss", RESTORE_DAYS, "restore drill")
_takeover_drill = _drilled("region-loss", TAKEOVER_DAYS, "takeover drill")
_copies_drill = _drilled("two-alive", TAKEOVER_DAYS, "drill of two copies alive")
_relay_drill = _drilled("relay-lost", RELAY_DAYS, "drill of a lost relay")
_WITHIN = f"within {TAKEOVER_DAYS} days"
GATES: tuple[Gate, ...] = (
    Gate("disk", 1, False, "the agent's folder is on a disk", _on_disk),
    Gate("resume", 1, False, "after a restart the agent has a journal or files to resume from", _resumes),
    Gate("snapshot", 2, False, "an encrypted snapshot is off the machine", _snapshot),
    Gate("restored", 2, True, "the newest snapshot was restored and compared within 24 h of being made", _restored),
    Gate("domains", 2, True, "two places in different failure domains hold a tested snapshot", _domains),
    Gate("rpo", 2, True, "no place's newest tested snapshot is older than the RPO target", _rpo),
    Gate("identity", 3, False, "the agent has an identity with a valid key log", _identity),
    Gate("keys", 3, False, "the keys are apart from the state", _keys_apart),
    Gate("paper", 3, False, "a recovery sheet, or enough shares, exist", _paper),
    Gate("read-back", 3, True, f"a sheet, or enough shares, were read back within {PAPER_DAYS} days", _read_back),
    Gate("escrow", 3, True, "escrow.age is beside two backups", _escrow),
    Gate("restore-drill", 3, True, f"a restore on fresh infrastructure was drilled within {RESTORE_DAYS} days", _fresh),
    Gate("shared-journal", 4, False, "the journal is shared: PostgreSQL", _shared),
    Gate("instances", 4, False, "two or more instances run", _instances),
    Gate("takeover-drill", 4, True, f"a takeover was drilled {_WITHIN}", _takeover_drill),
    Gate("old-refused", 4, True, f"the old instance was refused in a drill {_WITHIN}", _copies_drill),
    Gate("nothing-lost", 4, True, f"a takeover {_WITHIN} lost nothing", _nothing_lost),
    Gate("witnesses", None, False, "enough witnesses hold the newest record of the key log", _witnessed),
    Gate("relays", None, False, "three relays of two operators hold the newest profile", _relays),
    Gate("relay-drill", None, True, f"the loss of a relay was drilled within {RELAY_DAYS} days", _relay_drill),
)
