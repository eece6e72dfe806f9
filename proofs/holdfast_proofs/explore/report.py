"""What an exploration came to: for people as a table, for machines as JSON."""

from __future__ import annotations

import msgspec

from holdfast_proofs.explore.search import Result
from holdfast_proofs.explore.setup import Configuration, Kind


class Explored(msgspec.Struct, kw_only=True):
    """One configuration."""

    name: str
    kind: Kind  # what is expected of it
    ok: bool  # and whether it came so
    states: int
    edges: int
    seconds: float
    parked: int  # states with a parked step
    without: list[str]  # rules that are taken out
    finding: str = ""
    trace: list[str] = []
    why: str = ""  # of a survivor: what stands in for the rule


class Totals(msgspec.Struct, kw_only=True):
    configurations: int
    holds: int
    caught: int
    survives: int
    surprises: int
    states: int
    edges: int
    seconds: float
    cpu_seconds: float


class Report(msgspec.Struct, kw_only=True):
    """What build/explore.json holds."""

    green: bool
    totals: Totals
    configurations: list[Explored]


def judged(one: Configuration, result: Result) -> Explored:
    """Caught means caught for the reason that is named; a limit that was met is never right."""
    found = result.finding.partition(" ")[0]
    ok = found == one.breaks if one.kind == "caught" else not found
    return Explored(
        name=one.name,
        kind=one.kind,
        ok=ok,
        states=result.states,
        edges=result.edges,
        seconds=round(result.seconds, 2),
        parked=result.parked,
        finding=result.finding,
        trace=result.trace,
        why=one.why,
        without=sorted(rule.value for rule in one.setup.without),
    )


def summed(explored: list[Explored], *, seconds: float, cpu_seconds: float) -> Report:
    def count(kind: Kind) -> int:
        return sum(one.kind == kind and one.ok for one in explored)

    surprises = sum(not one.ok for one in explored)
    totals = Totals(
        configurations=len(explored),
        holds=count("holds"),
        caught=count("caught"),
        survives=count("survives"),
        surprises=surprises,
        states=sum(one.states for one in explored),
        edges=sum(one.edges for one in explored),
        seconds=round(seconds, 1),
        cpu_seconds=round(cpu_seconds, 1),
    )
    return Report(green=surprises == 0, totals=totals, configurations=explored)


def line(one: Explored) -> str:
    """One row of the table."""
    word = one.kind if one.ok else "RED"
    figures = f"{one.states:>9,} {one.edges:>10,} {one.seconds:>7.1f}"
    return f"{word:<9}{one.name:<56}{figures}  {one.finding}".rstrip()


HEADER = f"{'':<9}{'configuration':<56}{'states':>9} {'edges':>10} {'seconds':>7}"


def numbered(trace: list[str]) -> str:
    return "\n".join(f"    {number:>3}. {move}" for number, move in enumerate(trace, 1))
