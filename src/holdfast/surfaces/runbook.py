"""The runbook of an agent: what to do per failure, with its real names, for a tired person at night.

A pure function of facts. The steps are those of `procedures.py`, which the drills execute; `digest` of a section is the
one that a drill's report names. Nothing secret is in the facts, so nothing secret is on the page: names of secrets, and
never a value. It is made to be printed: when it is needed, the machine that made it may be gone.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.places import Place
from holdfast.core.clock import iso
from holdfast.core.surfaces import Surface, Verdict
from holdfast.layout.agent_home import AgentHome
from holdfast.surfaces import page
from holdfast.surfaces.procedure import Action, By, Need, Parts, Procedure, Rank
from holdfast.surfaces.procedures import PROCEDURES, procedure_values
from holdfast.surfaces.register import Register
from holdfast.surfaces.report import DrillSummary

KEEP = (
    "Print this page, and keep it with the recovery sheet: you need it when this machine is gone. Print it again after "
    "you add or remove a place, a witness or a sheet."
)
SCRIPTS = ("paper_key.py", "passphrase.py")
# Rows of the register that a person must find on the day.
SHOWN = (
    *("recovery sheet", "backup place", "escrow", "witness", "vault", "second place"),
    *("arbiter", "journal", "rescue key", "model endpoint", "own"),
)
RANKS = {Rank.IDENTITY: "First: identity", Rank.STATE: "Then: state", Rank.CONNECTIVITY: "Then: connectivity"}
DONE_BY = {By.PERSON: " (the person who has the paper)", By.OPERATOR: "", By.HOLDFAST: " (Holdfast does it by itself)"}
TESTED = ("pass", "pass with findings", "fail")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunbookFacts:
    """What was found of the agent."""

    home: AgentHome
    id: str  # empty: it has no identity
    places: tuple[Place, ...]
    best: Place | None  # from which to restore
    beside: frozenset[str]  # names of those on the disk of the agent's folder
    register: Register
    drills: tuple[DrillSummary, ...]  # oldest first
    scripts: Mapping[str, str]  # SCRIPTS by name, for a machine without Holdfast
    version: str
    app: str

    @property
    def parts(self) -> Parts:
        rows = {one.kind for one in self.register.surfaces}
        opened = "instances" in rows  # else the journal could not be opened, and its tasks are not known
        own = self.home.settings.drills
        return Parts(
            agent=bool(self.home.name) or "journal" in rows,
            identity=bool(self.id),
            journal="journal" in rows,
            server=bool(self.home.journal_url),
            relays="profile" in rows,
            places=len(self.places),
            models="model endpoint" in rows if opened else None,
            start=own.start,
            check=own.check,
        )

    @property
    def values(self) -> dict[str, str]:
        return procedure_values(self.home, self.places, id=self.id, app=self.app, place=self.best)

    def of_kind(self, *kinds: str) -> list[Surface]:
        return [one for kind in kinds for one in self.register.surfaces if one.kind == kind]


class RunbookStep(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    command: str  # empty: by hand
    by: str
    expect: str
    drilled: bool  # a drill runs this command


class LastDrill(msgspec.Struct, frozen=True, kw_only=True):
    ended: str
    verdict: str
    rto_s: float | None
    rpo_s: float | None
    rpo_items: int | None


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One failure. Where `why_not` is not empty, there are no steps."""

    slug: str
    failure: str
    seen: str
    rank: str
    why_not: str
    decides: str
    needs: tuple[str, ...]
    steps: tuple[RunbookStep, ...]
    worked: str
    last_drill: LastDrill | None
    digest: str


class Bare(msgspec.Struct, frozen=True, kw_only=True):
    """How to read the backups of one place with Borg and age alone."""

    place: str
    commands: tuple[str, ...]


class Runbook(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    id: str
    made: str
    version: str
    level: str
    folder: str
    rto_s: int
    rpo_s: int
    where: tuple[Surface, ...]
    sections: tuple[Section, ...]
    secrets: tuple[str, ...] | None  # names; None: they could not be read
    without_holdfast: tuple[Bare, ...]
    keep: str = KEEP


def make_runbook(facts: RunbookFacts) -> Runbook:
    register = facts.register
    return Runbook(
        agent=facts.home.name,
        id=facts.id,
        made=iso(register.at_ms),
        version=facts.version,
        level=register.level.text,
        folder=str(facts.home.state),
        rto_s=register.targets.rto_s,
        rpo_s=register.targets.rpo_s,
        where=tuple(facts.of_kind(*SHOWN)),
        sections=tuple(_section(one, facts) for one in PROCEDURES),
        secrets=_secrets(facts),
        without_holdfast=tuple(_bare(one) for one in facts.places),
    )


def _section(procedure: Procedure, facts: RunbookFacts) -> Section:
    parts, values = facts.parts, facts.values
    why_not = procedure.find_reason(parts)
    steps = () if why_not else tuple(_step(one, values) for one in procedure.steps(parts))
    return Section(
        slug=procedure.slug,
        failure=procedure.failure,
        seen=procedure.seen,
        rank=procedure.rank.value,
        why_not=why_not,
        decides=procedure.decides,
        needs=() if why_not else tuple(text for one in procedure.needs if (text := _need(one, facts))),
        steps=steps,
        worked=procedure.worked,
        last_drill=_last_drill(procedure.slug, facts.drills),
        digest=procedure.digest,
    )


def _step(action: Action, values: Mapping[str, str]) -> RunbookStep:
    expect = action.expect.format_map(values)
    drilled = bool(action.command) and action.drilled
    return RunbookStep(
        title=action.title, command=action.shown(values), by=action.by.value, expect=expect, drilled=drilled
    )


def _last_drill(slug: str, drills: tuple[DrillSummary, ...]) -> LastDrill | None:
    """The newest that ran; one that did not apply or could not run measured nothing."""
    last = next((one for one in reversed(drills) if one.slug == slug and one.verdict in TESTED), None)
    if last is None:
        return None
    return LastDrill(
        ended=iso(last.ended_ms), verdict=last.verdict, rto_s=last.rto_s, rpo_s=last.rpo_s, rpo_items=last.rpo_items
    )


def _need(need: Need, facts: RunbookFacts) -> str:
    """What a person must have, and where this agent has it."""
    home = facts.home
    match need:
        case Need.SHELL:
            return f"a shell on the agent's machine, as the user who owns `{home.state}`"
        case Need.MACHINE:
            return (
                f"a new machine with Linux, Python 3.11 or newer and a user for the agent. Holdfast {facts.version} "
                "(`pipx install holdfast`, or its wheel), and Borg 1.4: `holdfast doctor --install-borg`"
            )
        case Need.SHEET:
            sheets = [f"{one.id.replace('paper/', 'sheet ')} ({one.where})" for one in facts.of_kind("recovery sheet")]
            known = "; ".join(sheets) or "no sheet is registered: the 24 words that were shown when the agent was made"
            return f"the recovery sheet or enough shares: {known}"
        case Need.PLACE:
            return "one backup place that you can reach: " + _places(facts)
        case Need.FAR_PLACE:
            return "one backup place that was not on that machine: " + _places(facts, lost=True)
        case Need.OTHER:
            alone = "it is the only one: until you add another, a failure of it leaves no backup"
            return "the backup places: " + _places(facts) + ("" if len(facts.places) > 1 else f"; {alone}")
        case Need.VAULT:
            opened = "; ".join(one.evidence for one in facts.of_kind("vault") if one.evidence)
            return f"the vault at `{home.vault}`, {opened}" if opened else ""
        case Need.SERVER:
            return f"the server of the journal and its standby: {home.journal_url}. Its password is in your passfile"


def _places(facts: RunbookFacts, *, lost: bool = False) -> str:
    gone = {one.name for one in facts.places if lost and one.name in facts.beside}
    ends = dict.fromkeys(gone, ", on the agent's own disk: gone with it")
    return "; ".join(f"{one.name} (`{one.address}`{ends.get(one.name, '')})" for one in facts.places) or "there is none"


def _secrets(facts: RunbookFacts) -> tuple[str, ...] | None:
    rows = facts.of_kind("secret")
    names = tuple(one.id.removeprefix("secret/") for one in rows if one.id.startswith("secret/"))
    return None if rows and not names else names


def _bare(place: Place) -> Bare:
    """The page `restore-with-borg` explains each line. The words are typed, and are in no file."""
    repository = shlex.quote(place.repository)
    match place.kind:
        case PlaceKind.FOLDER:
            fetch = (shlex.join(("cp", f"{place.own}/escrow.age", f"{place.own}/place.json", ".")),)
        case PlaceKind.RCLONE:
            own = f"place/{place.agent}"
            copy = shlex.join(("rclone", "copy", place.address.removeprefix("rclone:"), "place"))
            fetch = (copy, shlex.join(("cp", f"{own}/escrow.age", f"{own}/place.json", ".")))
            repository = f'"$PWD"/{shlex.quote(f"{own}/repository{place.suffix}")}'
        case PlaceKind.SSH:
            beside = shlex.quote(place.companion or f"{place.address}-beside")
            fetch = (
                "export BORG_PASSPHRASE=holdfast",
                f"borg extract {beside}::$(borg list --short --last 1 {beside})",
                "unset BORG_PASSPHRASE",
            )
    commands = (
        *fetch,
        "umask 077; opened=$(mktemp -p /dev/shm)",
        'python3 paper_key.py | age -d -i - escrow.age | python3 passphrase.py place.json > "$opened"',
        'export BORG_PASSCOMMAND="cat $opened"',
        f'export BORG_BASE_DIR="$PWD/borg-base" REPO={repository}',
        'borg --bypass-lock list --short "$REPO"',
        "mkdir restored && cd restored",
        'borg --bypass-lock extract "$REPO::$(borg --bypass-lock list --short --last 1 "$REPO")"',
        'rm "$opened"',
    )
    return Bare(place=place.name, commands=commands)


# the page


def runbook_title(runbook: Runbook) -> str:
    return f"Runbook of agent {runbook.agent}" if runbook.agent else f"Runbook of {runbook.folder}"


def runbook_blocks(runbook: Runbook, scripts: Mapping[str, str]) -> list[page.Block]:
    blocks: list[page.Block] = [
        page.Heading(runbook_title(runbook), 1),
        page.Text(
            "For the day on which something failed. Find in the table what you see, go to its section, and do the "
            "steps in order. If several things failed: first identity, then state, then connectivity, as they follow "
            "here. Words in capitals are yours to fill in. Nothing on this page is secret."
        ),
        page.Table(("", ""), _head(runbook)),
        page.Heading("What do you see?"),
        page.Table(("you see", "go to"), _index(runbook)),
        page.Heading("Where everything is"),
    ]
    rows = [(one.kind, _name(one), one.where, _state(one)) for one in runbook.where]
    if rows:
        blocks.append(page.Table(("what", "name", "where", "state on that day"), rows))
    else:
        blocks.append(page.Text("Nothing is set up yet. `holdfast init NAME` makes an agent with an identity."))
    rank = ""
    for number, one in _numbered(runbook):
        if one.rank != rank:
            rank = one.rank
            blocks.append(page.Heading(RANKS[Rank(rank)]))
        blocks += _section_blocks(number, one, runbook)
    return [*blocks, *_secret_blocks(runbook), *_bare_blocks(runbook, scripts), *_last_blocks(runbook)]


def _numbered(runbook: Runbook) -> list[tuple[int, Section]]:
    return list(enumerate(runbook.sections, 1))


def _index(runbook: Runbook) -> list[tuple[str, str]]:
    return [(one.seen, f"[{number}. {one.slug}](#{one.slug})") for number, one in _numbered(runbook) if not one.why_not]


def _head(runbook: Runbook) -> list[tuple[str, str]]:
    return [
        ("agent", runbook.agent or "none in this folder"),
        ("id", runbook.id or "none: it has no identity"),
        ("folder", runbook.folder),
        ("level", runbook.level),
        ("targets", f"back within {runbook.rto_s:,} s; at most {runbook.rpo_s:,} s of work lost"),
        ("made", f"{runbook.made}, by Holdfast {runbook.version}"),
    ]


def _name(one: Surface) -> str:
    name = one.id.partition("/")[2]
    return "" if name == one.where else name


def _state(one: Surface) -> str:
    return one.why if one.verdict is Verdict.COVERED else f"{one.verdict.value}: {one.why}"


def _section_blocks(number: int, one: Section, runbook: Runbook) -> list[page.Block]:
    title = page.Heading(f"{number}. {one.failure[0].upper()}{one.failure[1:]} ({one.slug})", 3, one.slug)
    if one.why_not:
        return [title, page.Text(f"Not for this agent: {one.why_not}.")]
    steps = [
        page.Step(
            title=f"{step.title[0].upper()}{step.title[1:]}{DONE_BY[By(step.by)]}.",
            command=step.command,
            note=_note(step),
        )
        for step in one.steps
    ]
    return [
        title,
        page.Text(f"Who decides: {one.decides}. {_drilled(one, runbook)}"),
        page.Text("You need:"),
        page.Bullets(one.needs),
        page.Steps(steps),
        page.Text(f"It worked if: {one.worked}."),
    ]


def _note(step: RunbookStep) -> str:
    see = f"You should see: {step.expect}" if step.expect else ""
    return see if step.drilled or not step.command else f"{see}. No drill runs this step."


def _drilled(one: Section, runbook: Runbook) -> str:
    last = one.last_drill
    if last is None:
        return f"How long it takes is not known: it was never drilled (`holdfast drill run {one.slug}`)."
    lost = "" if last.rpo_s is None else f"; {last.rpo_s:g} s of work and {last.rpo_items} items were lost"
    took = "" if last.rto_s is None else f"; {last.rto_s:g} s until the first verified step"
    failed = (
        f" IT FAILED: see `holdfast drill findings --home {shlex.quote(runbook.folder)}`."
        if last.verdict == "fail"
        else ""
    )
    return f"Last drill: {last.ended[:10]}, {last.verdict}{took}{lost}.{failed}"


def _secret_blocks(runbook: Runbook) -> list[page.Block]:
    title = page.Heading("Secrets to rotate")
    rotate = f"`holdfast secret rotate NAME --home {shlex.quote(runbook.folder)}`"
    after = (
        "After the machine or the keys were lost or stolen, get a new value for each of these from its service, revoke "
        f"the old one there, then {rotate}:"
    )
    match runbook.secrets:
        case None:
            shows = f"`holdfast secret list --home {shlex.quote(runbook.folder)}` shows them"
            text = f"Their names could not be read when this page was made. After a recovery, {shows}; {rotate}."
            return [title, page.Text(text)]
        case ():
            return [title, page.Text("Holdfast keeps no secrets of tools for this agent.")]
        case names:
            return [title, page.Text(after), page.Bullets([f"`{name}`" for name in names])]


def _bare_blocks(runbook: Runbook, scripts: Mapping[str, str]) -> list[page.Block]:
    title = page.Heading("Without Holdfast")
    if not runbook.without_holdfast:
        return [title, page.Text("There is no backup to read.")]
    blocks: list[page.Block] = [
        title,
        page.Text(
            "If Holdfast cannot be installed: Borg 1.4, age and Python read the backups. Save the two programs at the "
            "end of this page as `paper_key.py` and `passphrase.py`. The first one waits for the 24 words: type them, "
            "then Enter and Ctrl-D. If the sheet has a passphrase, write it after `mnemonic` in `paper_key.py`; shares "
            "of 33 words need Holdfast. The agent's files are then in `restored/state`. Only read: never run an agent "
            "from them without `holdfast recover --journal`."
        ),
    ]
    for one in runbook.without_holdfast:
        blocks += [page.Heading(f"From the place {one.place}", 3), page.Code("\n".join(one.commands))]
    for name in SCRIPTS:
        blocks += [page.Heading(name, 3), page.Code(scripts[name], "python")]
    return blocks


def _last_blocks(runbook: Runbook) -> list[page.Block]:
    made = f"Made on {runbook.made[:10]} by `holdfast runbook print`."
    return [page.Heading("Keep this page"), page.Text(f"{runbook.keep} {made}")]
