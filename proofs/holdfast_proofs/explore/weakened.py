"""The protocol with one rule taken out: each breach must be found, and for the right reason.

A survivor is a weakened protocol in which nothing is found, because another rule stands in; which
one is written beside it. Survivors are run too: one that is caught after a change is news.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast_proofs.explore.holding import GATHER, JOINED
from holdfast_proofs.explore.setup import Configuration, Rule, Setup


def _caught(name: str, breaks: str, rules: tuple[Rule, ...], setup: Setup) -> Configuration:
    weak = replace(setup, without=frozenset(rules))
    return Configuration(name=name, kind="caught", setup=weak, breaks=breaks)


def _survives(name: str, why: str, rules: tuple[Rule, ...], setup: Setup) -> Configuration:
    weak = replace(setup, without=frozenset(rules))
    return Configuration(name=name, kind="survives", setup=weak, why=why)


WEAKENED: tuple[Configuration, ...] = (
    # the 17 of the first model
    _caught("no intent before the send", "I4", (Rule.INTENT,), Setup(classes="NN")),
    _caught("a key per attempt", "I1", (Rule.KEY,), Setup(classes="KK")),
    _caught("a new slot in doubt", "I1", (Rule.SAME_SLOT,), Setup(classes="K", refusals_stored=True, slots=1)),
    _caught("a timeout taken as failure", "I3", (Rule.TIMEOUT,), Setup(classes="KK")),
    _caught("a refusal closes while another attempt flies", "I3", (Rule.ALONE,), Setup(classes="KK", refusals=1)),
    _caught(
        "retry slots where refusals are not stored, restore",
        "I1",
        (Rule.SLOT_CONTRACT, Rule.SLOTS_ASKED),
        Setup(classes="K", refusals=1, slots=1, restores=1),
    ),
    _caught(
        "retry slots not asked after a restore",
        "I1",
        (Rule.SLOTS_ASKED,),
        Setup(
            classes="K",
            refusals=1,
            refusals_stored=True,
            slots=1,
            restores=1,
            lookup=True,
            window_closes=True,
            lapse=0,
            loss=0,
        ),
    ),
    _caught("the key window ignored", "I1", (Rule.WINDOW,), Setup(classes="KK", window_closes=True)),
    _caught(
        "a request outlives the key window", "I1", (Rule.WINDOW_OUTLIVES,), Setup(classes="KK", window_closes=True)
    ),
    _caught("N repeated", "I1", (Rule.AT_MOST_ONCE,), Setup(classes="NN")),
    _caught("asked before quiet", "I1", (Rule.ASK_IN_QUIET,), Setup(classes="QQ")),
    _caught("no epoch check, K", "I7", (Rule.EPOCH,), Setup(classes="KK")),
    _caught("no epoch check, Q", "I7", (Rule.EPOCH,), Setup(classes="QQ")),
    _caught(
        "a person decides before quiet", "I4", (Rule.NOT_BEFORE, Rule.SETTLE_IN_QUIET), Setup(classes="NN", person=True)
    ),
    _caught("blind restore, N", "I4", (Rule.SUSPECT,), Setup(classes="NN", lapse=1, restores=1)),
    _caught("blind restore, Q", "I4", (Rule.SUSPECT,), Setup(classes="QQ", lapse=1, restores=1)),
    _caught("I, one resource, no fence", "I6", (), Setup(classes="II", same_resource=True)),
    # the rules that came since
    _caught("no epoch check, N", "I7", (Rule.EPOCH,), Setup(classes="NN")),
    _caught("no epoch check, R", "I7", (Rule.EPOCH,), Setup(classes="RR")),
    _caught("state check only, Q", "I1", (Rule.EPOCH_NOT_STATE,), Setup(classes="QQ")),
    _caught("state check only, K refused", "I3", (Rule.EPOCH_NOT_STATE,), Setup(classes="K", refusals=1)),
    _caught("quiet taken as proof, I", "I3", (Rule.FORGETFUL,), Setup(classes="I", refusals=1)),
    _caught("a person looks before quiet", "I4", (Rule.NOT_BEFORE,), Setup(classes="N", person=True)),
    _caught(
        "open steps of a copy kept as they were",
        "I4",
        (Rule.SUSPECT_OPEN,),
        Setup(classes="N", restores=1, person=True, refusals=1, retries=True),
    ),
    _caught(
        "an answer of the lost timeline counts",
        "I4",
        (Rule.ANSWERS_BOUND,),
        Setup(classes="N", restores=1, person=True),
    ),
    _caught("a restore keeps the epochs", "I8", (Rule.INCARNATION,), Setup(classes="K", restores=1)),
    _caught(
        "a suspect slot sent where bodies are not compared",
        "I2",
        (Rule.BODY_COMPARED,),
        Setup(classes="K", restores=1, other_arguments=True, bodies_compared=False),
    ),
    _caught("F not suspect after a restore", "I3", (Rule.SUSPECT_FENCED,), Setup(classes="F", refusals=1, restores=1)),
    _caught(
        "only the first slot asks about later ones",
        "I1",
        (Rule.LATER_SLOTS_ASKED,),
        Setup(
            classes="K",
            refusals=2,
            refusals_stored=True,
            slots=2,
            attempts=3,
            restores=1,
            lookup=True,
            window_closes=True,
            lapse=0,
        ),
    ),
    _caught("the page of a living process is believed", "I4", (Rule.DEAD_PAGE,), Setup(classes="N", pages=True)),
    _caught("the page is marked after the first byte", "I4", (Rule.MARK_FIRST,), Setup(classes="N", pages=True)),
    _caught("a receipt taken for evidence", "I2", (Rule.RECEIPT,), Setup(classes="N", webhook=True)),
    _caught("a cancel skips what may have been sent", "I3", (Rule.SKIP_UNSENT,), Setup(classes="K", cancel=True)),
    _caught("a cancelled task ends in doubt", "I10", (Rule.CANCEL_SETTLES,), Setup(classes="K", cancel=True)),
    _caught("branches share a key", "I2", (Rule.OWN_KEYS,), Setup(classes="KK", chains=GATHER, lapse=1)),
    _caught("a step does not wait for the branches", "I5", (Rule.JOIN,), Setup(classes="KKK", chains=JOINED, lapse=0)),
    _caught(
        "a run rests on what it has not seen",
        "I10",
        (Rule.ROUSED,),
        Setup(classes="KN", chains=GATHER, lapse=1, person=True),
    ),
    _caught("T in a commit of its own", "I1", (Rule.ONE_COMMIT,), Setup(classes="T")),
    _caught(
        "a suspect slot sent without its approval",
        "T2",
        (Rule.APPROVAL,),
        Setup(classes="K", approval=True, restores=1, lapse=1),
    ),
)

SURVIVORS: tuple[Configuration, ...] = (
    _survives(
        "F, one resource, far end without fence",
        "the key keeps a late copy of an older write out as well, as long as the far end knows it",
        (Rule.FENCE,),
        Setup(classes="FF", same_resource=True),
    ),
    _survives(
        "state check only, K",
        "whoever writes first, the key lets one effect through, and a stale success is true",
        (Rule.EPOCH_NOT_STATE,),
        Setup(classes="KK"),
    ),
    _survives(
        "state check only, N",
        "one start is all that the states allow, so there is no second send to be wrong about",
        (Rule.EPOCH_NOT_STATE,),
        Setup(classes="NN", person=True),
    ),
    _survives(
        "settled before quiet, looked in quiet",
        "what was quiet when the person looked stays quiet while the step is parked",
        (Rule.SETTLE_IN_QUIET,),
        Setup(classes="NN", person=True),
    ),
)
