"""The trials: run with the crash shim loaded; a child is forked for each, and killed before one of its calls.

Then the parent looks who could act, runs the same command again as a person would, and looks at what it left.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.app.instances.standing import ROSTER_TEXT, SEEN_TEXT, StandingKind, read_seen
from holdfast.errors import BadInput, HoldfastError, MoveRefused, NotEnrolled, NotNow
from holdfast_proofs.instance_kills.world import World
from holdfast_proofs.shim import Mode, Trace, arm

TRACE_CALLS = 60_000
_SUBREAPER = 36

Work = Callable[[World], None]
WORK: dict[str, Work] = {
    "invite": World.invite,
    "join": World.join,
    "yield": World.give,
    "take": World.take,
    "remove": World.remove,
    "promote": World.promote,
}
ACTS = tuple(WORK)
# With a shared journal both act; `yield` and `promote` change the role.
SHARED_WORK: dict[str, Work] = {
    "invite": World.invite,
    "join": World.join,
    "yield": World.lower,
    "promote": World.lift,
    "remove": World.remove,
}
SHARED_ACTS = tuple(SHARED_WORK)
SHARED_AFTER = {
    "invite": ("", "absent"),
    "join": ("", ""),
    "yield": ("", "is-standby"),
    "promote": ("", ""),
    "remove": ("", "not-enrolled"),
}
Texts = dict[str, tuple[str, str]]  # what the shared journal has of the instances before each act
# How an act that has done everything answers when it is run again.
DONE = {
    "invite": BadInput,
    "join": BadInput,
    "take": (MoveRefused, BadInput),
    "remove": NotEnrolled,
    "promote": (NotEnrolled, NotNow),
}
# Who acts when the act is over, on a and on b.
AFTER = {
    "invite": ("", "absent"),
    "join": ("", "absent"),
    "yield": ("is-standby", "absent"),
    "take": ("is-standby", ""),
    "remove": ("", "absent"),
    "promote": ("keys-replaced", ""),
}


class Figures(msgspec.Struct, kw_only=True):
    acts: dict[str, int] = {}  # calls of each, undisturbed
    kills: int = 0
    both: int = 0  # two folders could act
    unfinished: int = 0  # the same command did not finish it
    seconds: float = 0.0
    findings: list[str] = []

    @property
    def green(self) -> bool:
        return self.kills > 0 and not self.findings


def sweep(folder: Path, points: int, *, only: int = 0, acts: Sequence[str] = ACTS, url: str = "") -> Figures:
    """About so many kills of each act, spread over its calls; `only`: one kill; `url`: of a journal to share."""
    ctypes.CDLL(None).prctl(ctypes.c_int(_SUBREAPER), ctypes.c_ulong(1), 0, 0, 0)  # a backup engine outlives us
    began, figures, world = time.monotonic(), Figures(), World(folder / "world", url)
    texts = Texts()
    world.make(backup=not url and "promote" in acts)
    _keep(world, folder, texts, "invite")
    world.invite()
    _keep(world, folder, texts, "join")
    world.join()
    (world.home("b") / "MEMORY.md").write_text("- of the standby\n")
    for act in ("yield", "remove") if url else ("yield", "remove", "promote"):
        _keep(world, folder, texts, act)
    if url:
        world.lower()
    else:
        world.give()
    _keep(world, folder, texts, "promote" if url else "take")
    for act in acts:
        figures.acts[act] = total = _trial(world, folder, texts, act, 0, figures)
        stride = max(1, total // points)
        for at in [only] if only else range(1 + stride // 2, total + 1, stride):
            _trial(world, folder, texts, act, at, figures)
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


def _keep(world: World, folder: Path, texts: Texts, act: str) -> None:
    shutil.copytree(world.root, folder / act, symlinks=True)
    if (shared := world.shared) is not None:
        texts[act] = (shared.read_text(ROSTER_TEXT), shared.read_text(SEEN_TEXT))


def _trial(world: World, folder: Path, texts: Texts, act: str, at: int, figures: Figures) -> int:
    """Kill the act before its `at`-th call; 0 leaves it in peace and counts them."""
    shutil.rmtree(world.root)
    shutil.copytree(folder / act, world.root, symlinks=True)
    world.rehome()
    if (shared := world.shared) is not None:
        roster, _ = texts[act]
        shared.change_text(ROSTER_TEXT, lambda _: roster)
        shared.change_text(SEEN_TEXT, lambda _: "")  # a copied folder is another host
        if act == "remove":
            world.standing("b")  # its host is noted
    trace = Trace.shared(TRACE_CALLS)
    child = os.fork()
    if child == 0:
        _live(world, act, trace, at)
    _, status = os.waitpid(child, 0)
    while left := _children():
        for pid in left:
            os.waitpid(pid, 0)
    where = f"{'--shared ' if world.url else ''}--act {act} --at {at}"
    if at == 0 and status:
        figures.findings.append(f"{where}: nobody was killed, and it ended with {status}")
    figures.kills += at > 0
    if at == 0 or trace.reached:
        try:
            _check(world, act, where, figures, whole=at == 0)
        except (HoldfastError, AssertionError, OSError) as error:
            figures.unfinished += 1
            figures.findings.append(f"{where}: {type(error).__name__}: {error}")
    return trace.count


def _live(world: World, act: str, trace: Trace, at: int) -> None:
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    arm(trace, Mode.KILL_BEFORE if at else Mode.TRACE, at=at, root=world.root)
    try:
        _work(world)[act](world)
    except BaseException:  # noqa: BLE001 - the parent must not go on with what is left of this one
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def _work(world: World) -> dict[str, Work]:
    return SHARED_WORK if world.url else WORK


def _children() -> list[int]:
    return [int(one) for one in Path("/proc/thread-self/children").read_text().split()]


def _check(world: World, act: str, where: str, figures: Figures, *, whole: bool) -> None:
    runs = (world.acts("a"), world.acts("b"))
    if runs == ("", "") and not world.url:
        figures.both += 1
        figures.findings.append(f"{where}: both folders can act")
    if not whole:
        try:
            _work(world)[act](world)
        except DONE.get(act, ()):  # it was done before the kill; what follows says whether
            pass
    assert _is_over(world, act), "the act is not over"
    after = (world.acts("a"), world.acts("b"))
    wanted = (SHARED_AFTER if world.url else AFTER)[act]
    assert after == wanted, f"after the kill {runs}, in the end {after}"


def _is_over(world: World, act: str) -> bool:
    if world.shared is not None and act != "invite":  # who acts says it
        return act != "remove" or len(read_seen(world.shared).bound) == 1
    match act:
        case "invite":
            names = {one.name for one in world.standing("a").view.enrolled}
            left = (world.home("a") / "instance" / "invite.json").exists()
            return world.invitation.exists() and names == {"north", "south"} and not left
        case "join":
            return world.home("b").exists() and world.standing("b").kind is StandingKind.STANDBY
        case "yield":
            return world.handoff.exists() and world.standing("a").kind is StandingKind.STANDBY
        case "take":
            return _both_lines(world) and world.standing("b").kind is StandingKind.PRIMARY
        case "remove":
            return {one.name for one in world.standing("a").view.enrolled} == {"north"}
        case _:
            return _both_lines(world) and world.standing("b").kind is StandingKind.PRIMARY


def _both_lines(world: World) -> bool:
    """No line of the standby's memory was lost, and none of the primary's."""
    memory = world.home("b") / "MEMORY.md"
    text = memory.read_text() if memory.exists() else ""
    return all(text.count(f"- of the {one}\n") == 1 for one in ("primary", "standby"))


def main(arguments: Sequence[str]) -> None:
    folder, points, only, url, *acts = arguments
    figures = sweep(Path(folder).resolve(), int(points), only=int(only), acts=acts, url=url)
    sys.stdout.buffer.write(msgspec.json.encode(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
