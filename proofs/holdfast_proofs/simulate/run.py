"""One seed, from the beginning of its world to the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from holdfast_proofs.simulate.checks import final_breaches, needless_parks
from holdfast_proofs.simulate.faults import DELAY_S, LEASE_TTL_S, Dice, Profile, draw_profile
from holdfast_proofs.simulate.parts.gated import gated
from holdfast_proofs.simulate.parts.person import Person
from holdfast_proofs.simulate.workload import Plan, draw_plan
from holdfast_proofs.simulate.world import World

Mode = Literal["safety", "liveness"]

HORIZON_S = (15.0, 45.0)  # how long faults go on
AFTERMATH_S = DELAY_S + 0.5  # what is under way lands, whoever was paused acts once more
WORK_S = 12.0  # for the steps themselves, their retries and sleeps, once nothing goes wrong
GATED = (5, 7)  # of each eight seeds: worlds whose tasks have a gate
SETTLE_S = 3 * LEASE_TTL_S + DELAY_S + WORK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one world."""

    seed: int
    mode: Mode
    breaches: list[str]
    digest: str
    virtual_s: float
    turns: int
    crashes: int
    pauses: int
    effects: int
    states: dict[str, int]
    pairs: set[tuple[str, str]] = field(repr=False)
    trace: list[str] = field(repr=False)
    profile: Profile = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A kind of world set up by hand, to look at one thing; the seed decides the rest."""

    profile: Profile
    plans: tuple[Plan, ...]  # each task gets one of these
    gate: bool = False  # whether the tasks have one


def simulate(seed: int, mode: Mode = "safety", *, stage: Stage | None = None, keep_trace: bool = False) -> Verdict:
    """Run the world of this seed and say what was wrong with it."""
    with gated(seed % 8 in GATED if stage is None else stage.gate):
        return _simulate(seed, mode, stage, keep_trace=keep_trace)


def _simulate(seed: int, mode: Mode, stage: Stage | None, *, keep_trace: bool) -> Verdict:
    dice = Dice(seed)
    profile = draw_profile(dice) if stage is None else stage.profile
    plans = [draw_plan(dice) if stage is None else dice.pick(stage.plans) for _ in range(profile.tasks)]
    world = World(seed, profile, dice)
    try:
        _live(world, mode, plans)
        _end(world)
        for breach in (*final_breaches(world), *needless_parks(world)):
            world.breach(breach)
        return _verdict(world, mode, keep_trace=keep_trace)
    finally:
        world.loop.end()


def _live(world: World, mode: Mode, plans: list[Plan]) -> None:
    loop, dice = world.loop, world.dice
    person = Person(world)
    loop.start(person.submit(plans), None)
    world.on_restore = lambda: person.submit_again(plans)
    if world.profile.person:
        loop.start(person.look(), None)
    world.start_workers()
    world.start_faults()
    horizon_s = dice.seconds(*HORIZON_S)
    loop.advance(lambda: _over(world), end_s=horizon_s)
    world.stop_faults()
    if mode == "liveness" and not loop.advance(world.settled, end_s=loop.now_s + SETTLE_S):
        states = {cell.task_id: cell.state.value for cell in world.store.tasks.values()}
        world.breach(f"L1: not settled {SETTLE_S:g} s after the last fault: {states}")


def _over(world: World) -> bool:
    """Whether nothing more can happen that matters."""
    if world.breaches or world.ended():
        return True
    return world.settled() and not world.profile.person


def _end(world: World) -> None:
    loop = world.loop
    loop.advance(lambda: False, end_s=loop.now_s + AFTERMATH_S)
    world.kill_all()
    loop.advance(lambda: False, end_s=loop.now_s + AFTERMATH_S)


def _verdict(world: World, mode: Mode, *, keep_trace: bool) -> Verdict:
    states: dict[str, int] = {}
    for cell in world.store.tasks.values():
        states[cell.state.value] = states.get(cell.state.value, 0) + 1
    return Verdict(
        seed=world.seed,
        mode=mode,
        breaches=world.breaches,
        digest=world.trace.digest(),
        virtual_s=world.loop.now_s,
        turns=world.loop.turns,
        crashes=world.crashes,
        pauses=world.pauses,
        effects=sum(map(len, world.far_end.done.values())),
        states=states,
        pairs=world.ledger.pairs,
        trace=world.trace.lines() if keep_trace else [],
        profile=world.profile,
    )
