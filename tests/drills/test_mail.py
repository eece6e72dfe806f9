"""What the drills of mail say of relays and messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from holdfast.drills.mail import Stage
from holdfast.drills.run import DrillRun


class Scripted:
    """A run whose agent has every message that was sent to it, but for those that are lost."""

    def __init__(self, lost: int = 0) -> None:
        self.values = {"home": "/ada"}
        self.production = SimpleNamespace(log=SimpleNamespace(id="hf1"))
        self.lost = lost
        self.sent = 0

    def fault(self, what: str, **_: str) -> None:
        pass

    def good(self, noun: str, verb: str, *_: str) -> Any:
        self.sent += verb == "send"
        numbers = [one for one in range(1, self.sent + 1) if one != self.lost]
        mail = [{"body": {"number": one}, "state": "succeeded", "task_id": f"T{one}"} for one in numbers]
        return SimpleNamespace(json=lambda: {"mail": mail, "sent": "now"})


def stage_of(run: Scripted) -> Stage:
    stage = Stage(cast(DrillRun, run))
    stage.relays = cast(Any, {"one": None, "two": None})
    stage.send()
    stage.wait_handled(1)
    stage.fault("a relay is lost", how="killed", target="three")
    return stage


def test_connectivity_counts_from_the_fault() -> None:
    stage = stage_of(Scripted())
    for number in (2, 3):
        stage.send()
        stage.wait_handled(number)
    found = stage.connectivity(stage.inbox())
    assert (found.relays_up, found.sent, found.received, found.lost) == (2, 2, 2, 0)
    assert found.failover_s is not None
    assert found.failover_s < 60


def test_a_message_that_the_agent_does_not_have_is_lost() -> None:
    for lost, received in ((1, 1), (2, 0)):
        stage = stage_of(Scripted())
        cast(Any, stage.run).lost = lost
        stage.send()
        found = stage.connectivity(stage.inbox())
        assert (found.sent, found.received, found.lost) == (1, received, 1)
        assert found.failover_s is None
