"""Whether a paper still has its power: current, replaced, retired, another's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import Owner, take

from holdfast.identity.log import drafts
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.derive import PaperFit, PaperKeys, PaperState, paper_fit
from holdfast.identity.paper.phrase import new_phrase
from holdfast.testing.clocks import SeededEntropy

OWNER = Owner()
OWNER_WIT = OWNER.wit
FIRST, SECOND, OTHER = (PaperKeys(new_phrase(SeededEntropy(n))) for n in (1, 2, 3))


def begun() -> KeyLog:
    return take(
        None,
        drafts.inception(
            op=(OWNER.op(0),),
            nxt=drafts.committed((OWNER.next(1).public,)),
            rec=drafts.committed((FIRST.recovery(1).public,)),
            wit=OWNER_WIT,
            nonce="AAAAAAAAAAAAAAAAAAAAAA",
        ),
    )


def recovered(log: KeyLog, by: PaperKeys, after: PaperKeys) -> KeyLog:
    g = len(log.generations)
    signed = drafts.recovery(
        id=log.id,
        g=g,
        rp=log.generations[-1].tier.digest,
        by=(by.recovery(g),),
        nxt=drafts.committed((by.next(g).public,)),
        rec=drafts.committed((after.recovery(g + 1).public,)),
    )
    return take(log, signed)


def test_a_paper_is_current_until_other_words_are_named() -> None:
    log = begun()
    assert paper_fit(FIRST, log) == PaperFit(fit=PaperState.CURRENT, generation=1)
    log = recovered(log, FIRST, FIRST)
    assert paper_fit(FIRST, log) == PaperFit(fit=PaperState.CURRENT, generation=2)
    log = recovered(log, FIRST, SECOND)
    assert paper_fit(FIRST, log) == PaperFit(fit=PaperState.REPLACED, generation=2)
    assert paper_fit(SECOND, log) == PaperFit(fit=PaperState.CURRENT, generation=3)
    log = recovered(log, SECOND, SECOND)
    assert paper_fit(FIRST, log) == PaperFit(fit=PaperState.REPLACED, generation=2)
    assert paper_fit(OTHER, log) == PaperFit(fit=PaperState.OTHER, generation=0)


def test_a_paper_that_comes_back_is_current_again() -> None:
    log = recovered(recovered(begun(), FIRST, SECOND), SECOND, FIRST)
    assert paper_fit(FIRST, log) == PaperFit(fit=PaperState.CURRENT, generation=3)
    assert paper_fit(SECOND, log) == PaperFit(fit=PaperState.REPLACED, generation=2)


def test_no_paper_has_a_say_after_the_retirement() -> None:
    log = begun()
    retired = drafts.retirement(id=log.id, g=1, rp=log.generations[0].tier.digest, by=(FIRST.recovery(1),))
    log = take(log, retired)
    assert paper_fit(FIRST, log) == PaperFit(fit=PaperState.RETIRED, generation=1)
    assert paper_fit(OTHER, log) == PaperFit(fit=PaperState.OTHER)


@pytest.mark.parametrize("wrong", [2, 3])
def test_a_key_of_another_generation_of_the_same_words_does_not_fit(wrong: int) -> None:
    odd = drafts.inception(
        op=(OWNER.op(0),),
        nxt=drafts.committed((OWNER.next(1).public,)),
        rec=drafts.committed((FIRST.recovery(wrong).public,)),
        wit=OWNER_WIT,
        nonce="AAAAAAAAAAAAAAAAAAAAAA",
    )
    assert paper_fit(FIRST, take(None, odd)).fit is PaperState.OTHER
