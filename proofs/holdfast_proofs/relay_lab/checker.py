"""What became of every message, from the file of events alone.

    lost              two relays had signed for it, and no handler began with it
    duplicated        two tasks handled it, under one key or under two
    false delivered   a delivery note was accepted before the recipient's journal had the message
    unfinished        a task wanted to send it, and the step never ended
    reruns            a worker died in a handler, and its task began again; a figure, as its steps count once
    misordered        handled after a later message of the same sender, recipient and thread. The wait for a message
                      has an end, and the later one then says that one is missing: a figure
    out of order      the same, and no later message had said so

Where machines of agents were lost, the journal that was there at the end is read too. A message that is not in it is
lost, whatever its handler had said before; and each message must have had one effect at the service of the handlers.

Delays are from the moment when the message was due to the commit in the recipient's journal, and to the handler. They
are given for each phase, and for the messages that were due in the seconds after a relay was killed or cut off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast_proofs.relay_lab.events import Event

WINDOW_NS = 3_000_000_000
NAMED_MAX = 5


@dataclass(slots=True)
class Message:
    m: str
    sender: str
    due: int
    phase: str
    to: str = ""  # id
    thread: str = ""
    number: int = 0
    stored: int = 0
    committed: int = 0
    handled: int = 0
    delivered: int = 0
    tasks: set[str] = field(default_factory=set[str])  # that handled it


@dataclass(slots=True)
class Verdict:
    messages: int = 0
    safe: int = 0
    handled: int = 0
    deliveries: int = 0
    notes: int = 0
    lost: list[str] = field(default_factory=list[str])
    duplicated: list[str] = field(default_factory=list[str])
    false_delivered: list[str] = field(default_factory=list[str])
    unfinished: list[str] = field(default_factory=list[str])
    effects_twice: list[str] = field(default_factory=list[str])
    effects_missing: list[str] = field(default_factory=list[str])
    machines_lost: int = 0
    misordered: int = 0
    out_of_order: list[str] = field(default_factory=list[str])
    reruns: int = 0
    kills: int = 0
    cuts: int = 0
    delays: dict[str, Delays] = field(default_factory=dict[str, "Delays"])

    @property
    def findings(self) -> list[str]:
        named = {
            "lost": self.lost,
            "handled twice": self.duplicated,
            "reported as delivered, and not committed": self.false_delivered,
            "never stored by two relays": self.unfinished,
            "handled after a later one that did not say that one is missing": self.out_of_order,
            "with two effects": self.effects_twice,
            "without an effect": self.effects_missing,
        }
        return [f"{len(found)} {what}: {', '.join(found[:NAMED_MAX])}" for what, found in named.items() if found]

    def to_json(self) -> dict[str, object]:
        return {
            "messages": self.messages,
            "safe": self.safe,
            "handled": self.handled,
            "deliveries": self.deliveries,
            "delivery_notes": self.notes,
            "lost": len(self.lost),
            "duplicated": len(self.duplicated),
            "false_delivered": len(self.false_delivered),
            "unfinished": len(self.unfinished),
            "effects_twice": len(self.effects_twice),
            "effects_missing": len(self.effects_missing),
            "machines_lost": self.machines_lost,
            "misordered": self.misordered,
            "out_of_order": len(self.out_of_order),
            "reruns": self.reruns,
            "kills": self.kills,
            "cuts": self.cuts,
            "delays_ms": {name: one.to_json() for name, one in sorted(self.delays.items())},
        }


@dataclass(slots=True)
class Delays:
    committed: list[int] = field(default_factory=list[int])
    handled: list[int] = field(default_factory=list[int])

    def add(self, message: Message) -> None:
        self.committed.append(message.committed - message.due)
        self.handled.append(message.handled - message.due)

    def to_json(self) -> dict[str, float]:
        return {
            "messages": len(self.committed),
            "p50": _ms(self.committed, 0.5),
            "p99": _ms(self.committed, 0.99),
            "max": _ms(self.committed, 1.0),
            "handled_p50": _ms(self.handled, 0.5),
            "handled_p99": _ms(self.handled, 0.99),
        }


def _ms(values: Sequence[int], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1e6, 1) if ordered else 0.0


class Checker:
    """Takes the events in their order; `verdict` at the end."""

    def __init__(self) -> None:
        self._phase = ""
        self._messages: dict[str, Message] = {}
        self._names: dict[str, str] = {}  # of agents, by id
        self._by_key: dict[tuple[str, str], str] = {}  # id of the sender, key: the message's name
        self._committed: dict[tuple[str, str], int] = {}
        self._newest: dict[tuple[str, str, str], int] = {}
        self._gaps: dict[tuple[str, str, str], int] = {}  # the newest one that said that one is missing
        self._faults: list[tuple[str, int]] = []  # what happened to a relay, and when
        self._audited: set[str] = set()  # ids
        self._kept: set[str] = set()  # tasks
        self._effects: Counter[str] = Counter()
        self._found = Verdict()

    def add(self, event: Event) -> None:
        match event.e:
            case "phase":
                self._phase = event.by
            case "agent":
                self._names[event.a] = event.by
            case "send":
                self._send(event)
            case "stored":
                self._stored(event)
            case "delivery":
                self._found.deliveries += 1
            case "committed":
                self._committed.setdefault((event.by, event.k), event.t)
            case "handled":
                self._handled(event)
            case "delivered":
                self._delivered(event)
            case "kill" | "cut":
                self._faults.append((event.e, event.t))
                self._found.kills += event.e == "kill"
                self._found.cuts += event.e == "cut"
            case "machine-lost":
                self._found.machines_lost += 1
            case "audited":
                self._audited.add(self._names[event.a])
            case "kept":
                self._kept.add(event.id)
            case "effect":
                self._effects[event.m] += 1
            case _:
                pass

    def _send(self, event: Event) -> None:
        """A task that is run again after a crash says so again: the first time counts."""
        if event.m not in self._messages:
            due = event.at or event.t
            self._messages[event.m] = Message(event.m, event.a, due, self._phase, event.by, event.th, event.n)

    def _stored(self, event: Event) -> None:
        message = self._messages[event.m]
        message.stored = message.stored or event.t
        self._by_key[self._names[event.a], event.k] = event.m

    def _handled(self, event: Event) -> None:
        message = self._messages[event.m]
        name = (event.by, event.k)
        self._by_key.setdefault(name, event.m)
        self._committed.setdefault(name, event.t)
        if event.id in message.tasks:
            self._found.reruns += 1
            return
        message.tasks.add(event.id)
        message.handled = message.handled or event.t
        if message.thread and len(message.tasks) == 1:
            line = (message.sender, event.a, message.thread)
            if message.number < self._newest.get(line, 0):
                self._found.misordered += 1
                if message.number > self._gaps.get(line, 0):
                    self._found.out_of_order.append(message.m)
            self._newest[line] = max(message.number, self._newest.get(line, 0))
            if event.info.get("missing"):
                self._gaps[line] = max(message.number, self._gaps.get(line, 0))

    def _delivered(self, event: Event) -> None:
        name = (self._names[event.a], event.k)
        self._found.notes += 1
        if name not in self._committed:
            self._found.false_delivered.append(f"{event.a} {event.k}")

    def verdict(self) -> Verdict:
        found = self._found
        for name, at in self._committed.items():
            message = self._messages.get(self._by_key.get(name, ""))
            if message is not None:
                message.committed = message.committed or at
        for message in self._messages.values():
            self._judge(message)
        return found

    def _judge(self, message: Message) -> None:
        found = self._found
        found.messages += 1
        found.safe += message.stored > 0
        found.handled += bool(message.tasks)
        if not message.stored:
            found.unfinished.append(message.m)
        elif not message.tasks or (message.to in self._audited and not message.tasks & self._kept):
            found.lost.append(message.m)
        if self._effects and message.to in self._audited and message.stored:
            if self._effects[message.m] > 1:
                found.effects_twice.append(message.m)
            if not self._effects[message.m]:
                found.effects_missing.append(message.m)
        if len(message.tasks) > 1:
            found.duplicated.append(message.m)
        if message.handled:
            found.delays.setdefault(message.phase, Delays()).add(message)
            for kind, at in self._faults:
                if at <= message.due < at + WINDOW_NS:
                    name = f"{message.phase}, {WINDOW_NS // 10**9} s after a {kind}"
                    found.delays.setdefault(name, Delays()).add(message)
                    break


def check(events: Iterable[Event]) -> Verdict:
    checker = Checker()
    for event in events:
        checker.add(event)
    return checker.verdict()
