"""`python -m holdfast_proofs.instance_worlds.folders`: three instances over a folder that delivers badly.

Each host has its own view of the shared folder, as with NFS caches or a program that copies it: what one host writes
comes to the others late, twice, half, in any order, beside conflict copies and another agent's files, or is deleted.
People save memory files meanwhile, and processes start again. In a part of the runs one host stays cut off at the end.
Then the folder delivers everything: all hosts that are reached must have the same bytes, every line once and no removed
line; of a host that is not reached, the others must say that it is behind or what they wait for.

The merges, the envelopes and the folder's code are the product's own. Ends with 1 where a promise broke, and prints the
seed; with `--self-test` where a planted fault went unnoticed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from nacl.signing import SigningKey

from holdfast.errors import HoldfastError
from holdfast.instances import envelope, merging
from holdfast.instances.channels import NEWEST, FolderChannel
from holdfast.instances.envelope import Parcel, Part, Peers, seal_parcel
from holdfast.instances.exchange import Heard
from holdfast.instances.line_document import LineDocument
from holdfast.instances.merging import Merging
from holdfast.instances.shared import SharedDocument, Update
from holdfast.layout.agent_home import MemoryPlace
from holdfast_proofs.merges.faults import patched
from holdfast_proofs.runner import Proof, Result, at_least_one, fast_folder, self_tested

RUNS = 10_000
CHUNK = 50
EVENTS = 30
ROUNDS_MAX = 40
SELF_TEST_RUNS = 300
FINDINGS_MAX = 20
HOSTS = ("ada", "ben", "cid")
AGENT, OTHER_AGENT = "hf1" + "a" * 58, "hf1" + "z" * 58
KEY = bytes(32)
FILES = ("MEMORY.md", "memory/2027-01-15.md", "memory/2027-01-16.md")
NOW_MS = 1_800_000_000_000
SIGNING = {name: SigningKey(name.encode().ljust(32, b"-")) for name in HOSTS}
KEYS = {name: bytes(key.verify_key) for name, key in SIGNING.items()}


def peers_of(name: str, *, agent: str = AGENT) -> Peers:
    return Peers(agent=agent, incarnation=1, me=name, keys=KEYS, sign=lambda text: SIGNING[name].sign(text).signature)


class World:
    """One run by its seed."""

    def __init__(self, seed: int, root: Path) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.now_ms = NOW_MS
        self.count = 0
        self.there: dict[tuple[str, str], str] = {}  # file and line: the host whose person added it
        self.removed: dict[tuple[str, str], str] = {}  # the same of those that it removed
        self.merging: dict[str, Merging] = {}
        for name in HOSTS:
            (root / name).mkdir(mode=0o700)
            self.view(name).mkdir()
            self.start(name)
        self.save("ada", FILES[0], ["# Memory", ""])
        self.cut_off = self.random.choice(HOSTS) if self.random.random() < 0.2 else ""

    def view(self, host: str) -> Path:
        return self.root / f"shared-{host}"

    def sent(self, host: str, sender: str) -> Path:
        """What that host sees of a sender's files."""
        return self.view(host) / f"holdfast-{AGENT[3:19]}" / sender

    def start(self, host: str) -> None:
        channel = FolderChannel(self.view(host), agent=AGENT, instance=host)
        self.merging[host] = Merging(MemoryPlace(folder=self.root / host), channel, peers_of(host), KEY)

    def run(self) -> str:
        acts: list[Callable[[], None]] = [self.edit, self.edit, self.merge, self.merge, self.merge]
        acts += [self.deliver] * 6 + [self.restart, self.other_agent, self.delete, self.conflict_copy]
        self.settle(cut_off="")  # all have met once, as after enrolment
        for _ in range(EVENTS):
            self.now_ms += self.random.choice((1_000, 6_000, 700_000))
            self.random.choice(acts)()
        return self.settle(cut_off=self.cut_off) or self.judge()

    # --- what happens -------------------------------------------------------------------------

    def lines(self, host: str, file: str) -> list[str]:
        path = self.root / host / file
        return path.read_text().splitlines() if path.exists() else []

    def save(self, host: str, file: str, lines: list[str]) -> None:
        path = self.root / host / file
        path.parent.mkdir(mode=0o700, exist_ok=True)
        swap = path.with_name(f".{path.name}.swp")
        swap.write_text("".join(f"{line}\n" for line in lines))
        swap.rename(path)

    def edit(self) -> None:
        host, file = self.random.choice(HOSTS), self.random.choice(FILES)
        lines = self.lines(host, file)
        own = [line for line in lines if self.there.get((file, line)) == host]
        if own and self.random.random() < 0.25:
            line = self.random.choice(own)
            lines.remove(line)
            self.removed[file, line] = host
            del self.there[file, line]
        else:
            for _ in range(self.random.choice((1, 1, 200))):  # 200: more than the newest envelope holds
                self.count += 1
                line = f"- {host} says {self.count:05}, and some words more"
                lines.insert(self.random.randrange(len(lines) + 1), line)
                self.there[file, line] = host
        self.save(host, file, lines)

    def merge(self, host: str = "") -> None:
        one = self.merging[host or self.random.choice(HOSTS)]
        if one.is_due(now_ms=self.now_ms):
            one.run(now_ms=self.now_ms)

    def restart(self) -> None:
        self.start(self.random.choice(HOSTS))

    def pair(self) -> tuple[str, str, list[Path]]:
        """A sender, another host, and files of the sender."""
        sender, to = self.random.sample(HOSTS, 2)
        folder = self.sent(sender, sender)
        return sender, to, sorted(folder.iterdir()) if folder.is_dir() else []

    def deliver(self) -> None:
        """One file comes to one host: whole, half, or as it was some files ago."""
        sender, to, files = self.pair()
        if not files:
            return
        path = self.random.choice(files)
        target = self.sent(to, sender) / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        raw = path.read_bytes()
        old = target.with_name(f"{target.name}.old")
        match self.random.choice(("whole", "whole", "whole", "half", "zeros", "older")):
            case "half":
                target.write_bytes(raw[: self.random.randrange(len(raw))])
            case "zeros":
                kept = self.random.randrange(len(raw))
                target.write_bytes(raw[:kept] + bytes(len(raw) - kept))
            case "older" if old.exists():
                shutil.copyfile(old, target)
            case _:
                shutil.copyfile(path, target)
                shutil.copyfile(path, old)

    def delete(self) -> None:
        """Anyone deletes a file, on its writer's host or on another one."""
        _, to, files = self.pair()
        if files:
            path = self.random.choice(files)
            seen = self.sent(to, path.parent.name) / path.name
            self.random.choice((path, seen)).unlink(missing_ok=True)

    def conflict_copy(self) -> None:
        sender, to, files = self.pair()
        if files:
            path = self.random.choice(files)
            copy = self.sent(to, sender) / f"{path.name} (conflicted copy of {to})"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)

    def other_agent(self) -> None:
        """Another agent's update is where one of ours is expected; its instance has the same name and key."""
        sender, to, _ = self.pair()
        document = LineDocument.from_lines([f"- of another agent {self.random.randrange(1_000)}"])
        update = Update(
            instance=sender, file="MEMORY.md", version=document.version(), data=document.whole(), whole=True
        )
        raw = seal_parcel(Parcel(at_ms=self.now_ms, updates=(update,)), peers_of(sender, agent=OTHER_AGENT), KEY)
        target = self.sent(to, sender) / NEWEST
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(raw)

    # --- the end ------------------------------------------------------------------------------

    def settle(self, *, cut_off: str) -> str:
        """The folder delivers, and passes run until nothing is due."""
        reached = [name for name in HOSTS if name != cut_off]
        before: object = None
        for _ in range(ROUNDS_MAX):
            self.now_ms += 700_000
            for sender in reached:
                for to in reached:
                    if sender != to:
                        self.mirror(sender, to)
            for name in reached:
                self.merge(name)
            after = {path: path.read_bytes() for name in reached for path in self.kept(name)}
            if after == before:
                return ""
            before = after
        return f"something still changes after {ROUNDS_MAX} rounds: {[self.merging[name].state for name in reached]}"

    def kept(self, host: str) -> list[Path]:
        """The memory files, and what this host has sent."""
        sent = self.sent(host, host)
        return [path for path in (*(self.root / host / file for file in FILES), *sent.glob("*")) if path.exists()]

    def mirror(self, sender: str, to: str) -> None:
        source, target = self.sent(sender, sender), self.sent(to, sender)
        target.mkdir(parents=True, exist_ok=True)
        wanted = {path.name: path.read_bytes() for path in source.iterdir()} if source.is_dir() else {}
        for path in target.iterdir():
            if path.name not in wanted:
                path.unlink()
        for name, raw in wanted.items():
            path = target / name
            if not path.exists() or path.read_bytes() != raw:
                swap = target / ".copy"
                swap.write_bytes(raw)
                swap.rename(path)

    def judge(self) -> str:
        reached = [name for name in HOSTS if name != self.cut_off]
        for file in FILES:
            texts = {tuple(self.lines(name, file)) for name in reached}
            if len(texts) > 1 and any(Path(file).name in self.merging[name].state.files for name in reached):
                continue  # it says for which instance it waits
            if len(texts) > 1:
                return f"{file} differs: {[sorted(set(one) - _all_have(texts))[:3] for one in texts]}"
            counts = Counter(texts.pop())
            for (where, line), host in self.there.items():
                if where == file and host in reached and counts[line] != 1:
                    return f"{file}: {line!r} is there {counts[line]} times"
            # Of what a host removed that is still cut off, the others may not have heard.
            removed = [line for (where, line), host in self.removed.items() if where == file and host in reached]
            back = [line for line in removed if counts[line]]
            if back:
                return f"{file}: {back[0]!r} was removed and is back"
            strange = [line for line in counts if "another agent" in line]
            if strange:
                return f"{file}: {strange[0]!r}"
        return self.find_silent_wait()

    def find_silent_wait(self) -> str:
        """What is not everywhere, and no host says so."""
        for name in HOSTS:
            for other in HOSTS:
                if other != self.cut_off or name == other:
                    continue
                state, waits = self.merging[name].state.peers[other], self.merging[name].state.files
                shown = [file for file in FILES if Path(file).name not in waits]
                # What the host removed that is cut off, nobody else can know.
                gone = {line for (_, line), host in self.removed.items() if host == other}
                lacks = any({*self.lines(name, file)}.difference(self.lines(other, file), gone) for file in shown)
                if lacks and not (state.waits or state.behind_ms):
                    return f"{name} does not say that {other} is behind"
        return ""


def _all_have(texts: Collection[tuple[str, ...]]) -> set[str]:
    return {line for line in next(iter(texts)) if all(line in one for one in texts)}


def find_breach(seed: int) -> str:
    """What is wrong at the end of this run; empty where nothing is."""
    with fast_folder("folders") as root:
        try:
            return World(seed, root).run()
        except (HoldfastError, OSError) as error:
            return f"{type(error).__name__}: {error}"


def breaches_of(seeds: range) -> list[tuple[int, str]]:
    return [(seed, why) for seed in seeds if (why := find_breach(seed))]


# --- planted faults -------------------------------------------------------------------------------


def _planted(where: object, name: str, new: Callable[..., object]) -> Callable[[], AbstractContextManager[None]]:
    return lambda: patched(where, name, new)


def _never_again(self: Merging, now_ms: int) -> bool:
    return self._newest is not None


def _all_know(self: SharedDocument, others: Collection[str]) -> bytes:
    return self.version


def _of_any_agent(raw: bytes, peers: Peers, key: bytes, *, sender: str) -> Parcel:
    outer, _ = envelope._read(raw)
    return envelope.open_parcel(raw, peers_of(peers.me, agent=outer.agent), key, sender=sender)


def _read_once(self: FolderChannel, instances: Collection[str]) -> dict[str, object]:
    return {name: True for name in instances if (self._agent / name / NEWEST).exists()}


def _none_lacks(self: SharedDocument, other: str) -> bool:
    return False


def _as_if_taken(self: Merging, name: str, part: Part, heard: Heard, now_ms: int) -> str:
    heard.parts[part.digest] = frozenset()
    return ""


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "lost-files-stay-lost": _planted(Merging, "_is_sent_whole", _never_again),
    "confirmed-too-early": _planted(SharedDocument, "floor", _all_know),
    "other-agents-taken": _planted(merging, "open_parcel", _of_any_agent),
    "read-once": _planted(FolderChannel, "marks", _read_once),
    "lag-unsaid": _planted(SharedDocument, "lacks", _none_lacks),
    "changes-before-their-parts": _planted(Merging, "_take_part", _as_if_taken),
}


def find_first(fault: str) -> tuple[int, str] | None:
    with FAULTS[fault]():
        return next(((seed, why) for seed in range(SELF_TEST_RUNS) if (why := find_breach(seed))), None)


def _run(given: argparse.Namespace) -> Result:
    if given.seed is not None:
        why = find_breach(given.seed)
        return Result(green=not why, figures={"breach": why}, summary=why or "holds")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        if given.self_test:
            return self_tested(pool, find_first, [given.fault] if given.fault else list(FAULTS))
        began = time.monotonic()
        last = given.first + given.runs
        chunks = [range(at, min(at + CHUNK, last)) for at in range(given.first, last, CHUNK)]
        broken = [one for found in pool.map(breaches_of, chunks) for one in found]
    seconds = round(time.monotonic() - began, 1)
    return Result(
        green=not broken,
        figures={"runs": given.runs, "broken": len(broken), "findings": broken[:FINDINGS_MAX], "seconds": seconds},
        findings=[f"seed {seed}: {why}" for seed, why in broken[:FINDINGS_MAX]],
        again="--seed SEED",
        summary=f"{given.runs:,} runs of 3 instances over a bad folder, {len(broken)} broken, {seconds} s",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=at_least_one, default=RUNS, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one run")
    parser.add_argument("--self-test", action="store_true", help="plant each fault: it must be noticed")
    parser.add_argument("--fault", choices=list(FAULTS), help="with --self-test: only this one")


PROOF = Proof(
    name="instance_worlds.folders",
    purpose="Merge the memory of three instances over a shared folder that delivers badly.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
