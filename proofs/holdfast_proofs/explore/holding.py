"""Configurations that must hold: no state breaks an invariant, every state can settle.

Budgets are as a rule two processes, one crash, one loss and two leases that end too soon; less
where a restore multiplies the states, more where a rule needs it to be seen at all. The first 26
are those of the model that the protocol was designed with.
"""

from __future__ import annotations

from holdfast_proofs.explore.setup import Configuration, Setup

GATHER = ((0,), (1,))
JOINED = ((0, 2), (1,))  # step 3 comes after both branches


def _holds(name: str, setup: Setup) -> Configuration:
    return Configuration(name=name, kind="holds", setup=setup)


HOLDING: tuple[Configuration, ...] = (
    # the 26 of the first model
    _holds("K", Setup(classes="KK")),
    _holds("K, merged commit", Setup(classes="KK", merged=True)),
    _holds("K refused, refusals not stored", Setup(classes="KK", refusals=1)),
    _holds("K refused, stored, 3 attempts", Setup(classes="KK", refusals=1, refusals_stored=True, attempts=3)),
    _holds(
        "K refused, stored, restore, 3 attempts",
        Setup(classes="K", refusals=1, refusals_stored=True, restores=1, attempts=3),
    ),
    _holds("K refused, not stored, restore", Setup(classes="K", refusals=1, restores=1)),
    _holds("K window closes", Setup(classes="KK", window_closes=True)),
    _holds("K window closes, lookup", Setup(classes="KK", window_closes=True, lookup=True)),
    _holds("K, one resource", Setup(classes="KK", same_resource=True)),
    _holds("F, one resource", Setup(classes="FF", same_resource=True)),
    _holds("Q", Setup(classes="QQ")),
    _holds("Q, merged commit", Setup(classes="QQ", merged=True)),
    _holds("Q refused", Setup(classes="QQ", refusals=1)),
    _holds("N", Setup(classes="NN")),
    _holds("N, merged commit", Setup(classes="NN", merged=True)),
    _holds("N, person", Setup(classes="NN", person=True)),
    _holds("N refused, person", Setup(classes="NN", person=True, refusals=1)),
    _holds("N at least once", Setup(classes="NN", at_least_once=True)),
    _holds("I", Setup(classes="II")),
    _holds("K restore", Setup(classes="KK", lapse=1, restores=1)),
    _holds("Q restore", Setup(classes="QQ", lapse=1, restores=1)),
    _holds("N restore, person", Setup(classes="NN", lapse=1, restores=1, person=True)),
    _holds("K, 3 processes", Setup(classes="K", processes=3, lapse=3)),
    _holds("Q, 3 processes", Setup(classes="Q", processes=3, lapse=3)),
    _holds("N, 3 processes, person", Setup(classes="N", processes=3, lapse=3, crash=2, person=True)),
    _holds("K, 3 steps", Setup(classes="KKK")),
    # the other classes
    _holds("R then K, merged commit", Setup(classes="RK", merged=True)),
    _holds("R then N, person", Setup(classes="RN", person=True)),
    _holds("T", Setup(classes="TT")),
    _holds("T then K then T", Setup(classes="TKT", lapse=1)),
    _holds("T restore", Setup(classes="TT", restores=1)),
    _holds("F refused", Setup(classes="FF", refusals=1)),
    _holds("I refused", Setup(classes="II", refusals=1)),
    _holds("N at least once, refused", Setup(classes="NN", at_least_once=True, refusals=1)),
    _holds("Q, unsure, person", Setup(classes="QQ", unsure=1, person=True)),
    _holds("F restore", Setup(classes="FF", lapse=1, restores=1)),
    _holds("F refused, restore", Setup(classes="F", refusals=1, restores=1, lapse=1)),
    _holds("I refused, restore", Setup(classes="I", refusals=1, restores=1, lapse=1)),
    # retries and retry slots
    _holds("K refused twice, retried under its key", Setup(classes="KK", refusals=2, retries=True, lapse=1)),
    _holds("Q refused, retried", Setup(classes="Q", refusals=2, retries=True)),
    _holds("N refused, retried, person", Setup(classes="N", refusals=2, retries=True, person=True)),
    _holds("K retry slot", Setup(classes="KK", refusals=1, refusals_stored=True, slots=1, attempts=3, lapse=1)),
    _holds(
        "K retry slot, restore",
        Setup(classes="K", refusals=1, refusals_stored=True, slots=1, attempts=3, restores=1, lapse=1),
    ),
    _holds(
        "K retry slot, restore, lookup",
        Setup(classes="K", refusals=1, refusals_stored=True, slots=1, attempts=3, restores=1, lapse=1, lookup=True),
    ),
    _holds(
        "K retry slot, restore, lookup, window closes",
        Setup(
            classes="K",
            refusals=1,
            refusals_stored=True,
            slots=1,
            attempts=3,
            restores=1,
            lookup=True,
            window_closes=True,
            lapse=1,
        ),
    ),
    _holds(
        "K 2 retry slots, restore, lookup, window closes",
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
    _holds(
        "K 2 retry slots, restore",
        Setup(classes="K", refusals=2, refusals_stored=True, slots=2, attempts=3, restores=1, lapse=0),
    ),
    # cancel
    _holds("K cancelled", Setup(classes="KK", cancel=True)),
    _holds("K refused, retried, cancelled", Setup(classes="K", refusals=1, retries=True, cancel=True)),
    _holds("Q cancelled", Setup(classes="QQ", cancel=True)),
    _holds("N cancelled, person", Setup(classes="NN", cancel=True, person=True, skips=True)),
    _holds("N cancelled, pages", Setup(classes="NN", cancel=True, pages=True)),
    _holds(
        "K retry slot, cancelled",
        Setup(classes="K", cancel=True, refusals=1, refusals_stored=True, slots=1, attempts=3),
    ),
    # gather
    _holds("gather K and K", Setup(classes="KK", chains=GATHER, lapse=1)),
    _holds("gather K and N, person", Setup(classes="KN", chains=GATHER, lapse=1, person=True)),
    _holds("gather Q and N, then K", Setup(classes="QNK", chains=JOINED, lapse=1, crash=0, loss=0)),
    _holds("gather K and K, then K", Setup(classes="KKK", chains=JOINED, lapse=1, crash=0)),
    # restore in full
    _holds("N restore, person may skip", Setup(classes="N", restores=1, person=True, skips=True)),
    _holds("K restore, other arguments", Setup(classes="K", restores=1, other_arguments=True)),
    _holds(
        "K restore, other arguments, bodies not compared",
        Setup(classes="K", restores=1, other_arguments=True, bodies_compared=False, person=True),
    ),
    _holds(
        "K restore, other arguments, lookup",
        Setup(classes="K", restores=1, other_arguments=True, bodies_compared=False, lookup=True),
    ),
    _holds("Q restore, other arguments", Setup(classes="Q", restores=1, other_arguments=True)),
    _holds("Q restore, one step", Setup(classes="Q", restores=1, lapse=0)),
    _holds("K restored twice", Setup(classes="K", restores=2, lapse=1)),
    _holds("K restore, cancelled", Setup(classes="K", restores=1, cancel=True)),
    # session pages, evidence, people
    _holds("N, pages", Setup(classes="NN", pages=True, crash=2)),
    _holds("N, pages, person", Setup(classes="N", pages=True, crash=2, person=True)),
    _holds("K refused, pages", Setup(classes="K", pages=True, crash=2, refusals=1)),
    _holds("N restore, pages", Setup(classes="N", pages=True, crash=2, restores=1)),
    _holds("N, webhook", Setup(classes="NN", webhook=True)),
    _holds("N, webhook, person may skip", Setup(classes="N", webhook=True, person=True, skips=True)),
    _holds("Q, webhook", Setup(classes="QQ", webhook=True)),
    _holds("K window closes, person, webhook", Setup(classes="K", window_closes=True, person=True, webhook=True)),
    _holds("K 2 attempts, person", Setup(classes="K", attempts=2, person=True, crash=2)),
    # approvals
    _holds("N, approval, cancelled, person", Setup(classes="N", approval=True, cancel=True, person=True)),
    _holds("K restore, approval, person", Setup(classes="K", approval=True, restores=1, lapse=1, person=True)),
    _holds("Q restore, approval, person", Setup(classes="Q", approval=True, restores=1, lapse=1, person=True)),
    _holds("F restore, approval", Setup(classes="F", approval=True, restores=1, lapse=0)),
    # several at once
    _holds(
        "gather K and N, restore, person", Setup(classes="KN", chains=GATHER, lapse=0, loss=0, restores=1, person=True)
    ),
    _holds(
        "N restore, cancelled, person", Setup(classes="N", cancel=True, restores=1, lapse=0, person=True, skips=True)
    ),
    _holds("N restore, webhook, person", Setup(classes="N", restores=1, lapse=1, webhook=True, person=True)),
    _holds(
        "F restore, other arguments, person", Setup(classes="F", restores=1, lapse=1, other_arguments=True, person=True)
    ),
    _holds(
        "K restore, pages, lookup, window closes",
        Setup(classes="K", restores=1, lapse=1, pages=True, window_closes=True, lookup=True),
    ),
    _holds(
        "K 2 retry slots, pages, cancelled",
        Setup(classes="K", refusals=2, refusals_stored=True, slots=2, attempts=3, pages=True, cancel=True, lapse=1),
    ),
    _holds("I refused, retried, pages", Setup(classes="I", refusals=2, retries=True, pages=True, lapse=1, crash=2)),
    _holds(
        "N refused, retried, pages, person may skip",
        Setup(classes="N", refusals=2, retries=True, pages=True, lapse=1, crash=2, person=True, skips=True),
    ),
    _holds(
        "K restored twice, retry slot, lookup, window closes",
        Setup(
            classes="K",
            restores=2,
            lapse=0,
            loss=0,
            refusals=1,
            refusals_stored=True,
            slots=1,
            attempts=3,
            window_closes=True,
            lookup=True,
        ),
    ),
    # wider budgets
    _holds("K, wide", Setup(classes="KK", crash=2, loss=2, lapse=3)),
    _holds("Q, wide", Setup(classes="QQ", crash=2, loss=2, lapse=3)),
    _holds("N, wide, person", Setup(classes="NN", crash=2, loss=2, lapse=3, person=True)),
)
