"""The explorer: the small set on every change, and proof that it looks at production's rules."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from holdfast.core.effect import Letter
from holdfast.core.resume import Move, decide
from holdfast.core.step import Event, Facts, NotAllowed, Step, StepState, next_step
from holdfast_proofs.explore import rules
from holdfast_proofs.explore.__main__ import main
from holdfast_proofs.explore.catalogue import CONFIGURATIONS, SMALL
from holdfast_proofs.explore.report import judged
from holdfast_proofs.explore.search import explore
from holdfast_proofs.explore.setup import Configuration, Rule, Setup


@pytest.mark.parametrize("one", SMALL, ids=lambda one: one.name)
def test_it_comes_as_expected(one: Configuration) -> None:
    done = judged(one, explore(one.setup))
    assert done.ok, "\n".join([done.finding, *done.trace])


def test_every_rule_is_taken_out_somewhere() -> None:
    taken = {rule for one in CONFIGURATIONS for rule in one.setup.without}
    assert taken == set(Rule)


def test_names_are_unique_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    names = [one.name for one in CONFIGURATIONS]
    assert len(names) == len(set(names))
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in names if name not in listed] == []


# Production is imported, not copied: break it, and the breach is found.


def test_a_refusal_that_always_closes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(step: Step | None, event: Event, facts: Facts, *, letter: Letter) -> Step | NotAllowed:
        new = next_step(step, event, facts, letter=letter)
        if event is Event.REFUSE and isinstance(new, Step):
            return msgspec.structs.replace(new, state=StepState.FAILED)
        return new

    monkeypatch.setattr(rules, "next_step", broken)
    result = explore(Setup(classes="K", refusals=1))
    assert result.finding.startswith("I3")
    assert result.trace[0] == "a worker claims the task: epoch 1"


def test_a_proposal_that_is_refused_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(step: Step, facts: Facts) -> Move:
        move = decide(step, facts)
        return Move.START if move is Move.PARK else move

    monkeypatch.setattr(rules, "decide", broken)
    result = explore(Setup(classes="N"))
    assert result.finding == "X1 start of a step that is unknown: it may have happened; at most once"


def test_a_task_that_can_never_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(step: Step, facts: Facts) -> Move:
        move = decide(step, facts)
        return Move.WAIT if move is Move.FIND else move

    monkeypatch.setattr(rules, "decide", broken)
    assert explore(Setup(classes="Q")).finding.startswith("L1")


# The command


def test_the_report_tells_figures_and_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "build" / "explore.json"
    name = "no intent before the send"
    assert main(["--only", name, "--json", "--report", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(path.read_text())
    (one,) = shown["configurations"]
    assert (one["name"], one["kind"], one["ok"]) == (name, "caught", True)
    assert one["finding"] == "I4 step 1 is done without a durable start"
    assert one["trace"][-1] == "the far end does step 1"
    assert shown["totals"]["states"] == one["states"] > 0
    assert shown["totals"]["edges"] == one["edges"] > 0


def test_a_surprise_is_red_and_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(step: Step, facts: Facts) -> Move:
        return Move.PARK if step.state is StepState.UNKNOWN else decide(step, facts)

    monkeypatch.setattr(rules, "decide", broken)
    assert main(["--only", "T"]) == 0  # a Transactional step is never unknown
    capsys.readouterr()
    assert main(["--only", "Q"]) == 1
    shown = capsys.readouterr().out
    assert "X1 park of a step that is unknown" in shown
    assert 'python -m holdfast_proofs.explore --only "Q"' in shown


def test_list_names_every_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    *names, closing = capsys.readouterr().out.splitlines()
    assert len(names) == len(CONFIGURATIONS)
    assert closing == f"green: {len(names)} configurations"
    assert main(["--only", "no such configuration"]) == 2
