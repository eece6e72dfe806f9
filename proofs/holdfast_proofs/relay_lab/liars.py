"""One of three relays lies, while agents write to each other.

The lies are those of lying_relay.py. Red: a message that is lost, handled twice or falsely reported as delivered; an
older profile that an agent takes for the newest, or another agent's that it takes for the one it asked for; a lie about
mail without a proof file that the second program (`python -m holdfast_proofs.relay_proof FILE`) verifies. In the run
`honest` no relay lies: then there must be no proof.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import holdfast
from holdfast.errors import HoldfastError
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.statements.statements import Profile
from holdfast.relay.client.address_book import AddressBook
from holdfast.relay.client.profile import find_own_profile
from holdfast_proofs.relay_lab.__main__ import Plan, Run
from holdfast_proofs.relay_lab.live import Live
from holdfast_proofs.relay_lab.lying_relay import LIES
from holdfast_proofs.relay_lab.proxy import Faults
from holdfast_proofs.relay_lab.site import LabAgent, Site, site
from holdfast_proofs.runner import Proof, Result, at_least_one

HONEST = "honest"
PROFILES = ("old-profile", "other-agent")  # lies that no signature of the relay contradicts
PACE = 10.0  # messages a second
PATIENCE_S = 60.0


async def _run(found: Site, *, messages: int, agents: int, seed: int) -> Run:
    plan = Plan(
        messages=messages,
        agents=agents,
        workers=agents,
        relays=3,
        rate=PACE,
        pace=PACE,
        phase_s=messages / PACE,
        kill_every_s=1e6,
        patience_s=PATIENCE_S,
        backlog=1_000,
        plant="",
        seed=seed,
    )
    await found.make_agents(agents)
    async with AsyncExitStack() as stack:
        journals = {
            one.name: await stack.enter_async_context(holdfast.open(one.home.journal, serve=False))
            for one in found.agents
        }
        for one in found.agents:
            one.start(events=found.events_path, more={})
        run = Run(plan, found, Live(found.events_path), journals, random.Random(seed))
        await run.warm_up()
        await run.phase("liar", messages, PACE, run.no_fault)
        await run.settle()
    return run


async def find_wrong_profiles(found: Site) -> list[str]:
    """Every agent publishes a newer profile; then others look for it, also where only the liar answers."""
    wrong: list[str] = []
    newest: dict[str, tuple[int, int, int]] = {}
    for one in found.agents:
        await one.use_relays(found.addresses)  # in another order of preference, and with other operators: a new version
        newest[one.id] = _Book(one, found).own_rank
    pairs = [(one, other) for one in found.agents for other in found.agents if one is not other]
    for one, other in pairs:
        seen = await _Book(one, found).find(other.id)
        if seen is None or seen.id != other.id or seen.rank < newest[other.id]:
            taken = "nothing" if seen is None else f"{seen.id} {seen.rank}"
            wrong.append(f"{one.name} takes {taken} for the newest profile of {other.name}: {newest[other.id]}")
    for front in range(1, len(found.relays)):
        found.proxy.set(front, Faults(mode="half-open"))
    await asyncio.sleep(0.2)
    for one, other in pairs[:2]:
        seen = await _Book(one, found).find(other.id)
        if seen is not None and (seen.id != other.id or seen.rank < newest[other.id]):
            wrong.append(f"{one.name} takes {seen.id} {seen.rank} for {other.name}, from the liar alone")
    for front in range(1, len(found.relays)):
        found.proxy.set(front, Faults())
    return wrong


class _Book:
    """An agent's address book, as a process that has just been started has it: what it knows is on the disk."""

    def __init__(self, agent: LabAgent, found: Site) -> None:
        self._agent = agent
        self._book = AddressBook(agent.home.peers_file, lambda: found.addresses, Sodium())

    @property
    def own_rank(self) -> tuple[int, int, int]:
        held = find_own_profile(self._agent.home)
        assert held is not None
        return held.record.rank

    async def find(self, id: str) -> Profile | None:
        try:
            return (await self._book.find(id, fresh=True)).profile.record
        except HoldfastError:
            return None  # refused: nothing is better than a wrong one


def verified_proofs(found: Site) -> tuple[list[str], list[str]]:
    """What the second program says of each proof file; and the files that it refuses."""
    good: list[str] = []
    bad: list[str] = []
    for agent in found.agents:
        for path in sorted(agent.home.relay_proofs.glob("*.json")):
            words = [sys.executable, "-P", "-m", "holdfast_proofs.relay_proof", str(path)]
            done = subprocess.run(words, capture_output=True, text=True)
            (good if done.returncode == 0 else bad).append(
                f"{agent.name}: {done.stdout.strip() or done.stderr.strip()}"
            )
    return good, bad


def prove_one(root: Path, lie: str, *, messages: int, agents: int, seed: int) -> tuple[list[str], dict[str, object]]:
    """Findings and figures of one lie, or of honest relays."""
    root.mkdir(mode=0o700)
    liar = () if lie == HONEST else ("-m", "holdfast_proofs.relay_lab.lying_relay", lie)
    with site(root, relays=3, seed=seed, liar=liar) as found:
        asyncio.run(_run(found, messages=messages, agents=agents, seed=seed))
        wrong = asyncio.run(find_wrong_profiles(found)) if lie in PROFILES else []
        good, bad = verified_proofs(found)
    verdict = Live(root / "events.jsonl").verdict()
    findings = [*verdict.findings, *wrong, *(f"a proof file that proves nothing: {one}" for one in bad)]
    provable = lie not in (HONEST, *PROFILES)
    if provable and not good:
        findings.append("no proof of the lie was kept")
    if not provable and good:
        findings.append(f"a proof against a relay that did not contradict itself: {good[0]}")
    figures = {**verdict.to_json(), "wrong_profiles": len(wrong), "proofs": len(good), "first_proof": good[:1]}
    return [f"{lie}: {one}" for one in findings], figures


def _prove(given: argparse.Namespace) -> Result:
    root = Path(tempfile.mkdtemp(prefix="holdfast-relay-liars-", dir=given.folder))
    findings: list[str] = []
    figures: dict[str, dict[str, object]] = {}
    for lie in given.lies or (HONEST, *LIES):
        found, figures[lie] = prove_one(root / lie, lie, messages=given.messages, agents=given.agents, seed=given.seed)
        findings += found
        print(f"{lie}: {len(found)} findings, {figures[lie]['proofs']} proofs", file=sys.stderr)
    if findings or given.keep:
        print(f"events, journals and logs are kept in {root}", file=sys.stderr)
    else:
        shutil.rmtree(root)

    def total(name: str) -> int:
        return sum(int(str(one[name])) for one in figures.values())

    counts = ", ".join(
        f"{name} {total(name)}" for name in ("lost", "duplicated", "false_delivered", "wrong_profiles", "proofs")
    )
    summary = f"{total('messages')} messages, {len(figures)} runs; {counts}"
    again = f"--messages {given.messages} --agents {given.agents} --seed {given.seed}"
    return Result(green=not findings, figures=figures, findings=findings, again=again, summary=summary)


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("lies", nargs="*", metavar="LIE", help=f"only these: {', '.join((HONEST, *LIES))} (all)")
    add("--messages", type=at_least_one, default=600, help="for each lie (600)")
    add("--agents", type=int, default=4, help="(4)")
    add("--seed", type=int, default=0, help="of the load (0)")
    add("--folder", type=Path, help="make everything in this folder (a temporary one)")
    add("--keep", action="store_true", help="keep the folder also where all is well")


PROOF = Proof(
    name="relay_lab.liars",
    purpose="One relay of three lies about mail and profiles: nothing is lost, none is believed, the lie is proven.",
    add_options=_options,
    run=_prove,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
