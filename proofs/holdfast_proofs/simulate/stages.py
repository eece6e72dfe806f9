"""Worlds set up so that one rule matters in nearly all of them: a bug in it shows within seconds.

The general worlds find every planted bug too, within a few thousand seeds; a test run has no
time for that, and which seed finds what moves with every change of the code.
"""

from __future__ import annotations

from holdfast_proofs.simulate.faults import Profile
from holdfast_proofs.simulate.run import Stage
from holdfast_proofs.simulate.workload import Plan

_QUERIED: tuple[Plan, ...] = ([["call", "queryable", 1]], [["call", "queryable_whole", 2], ["call", "queryable", 3]])
_KEYED: tuple[Plan, ...] = ([["call", "keyed", 1]], [["call", "stored", 2], ["call", "keyed", 3]])
_ONCE: tuple[Plan, ...] = ([["call", "unrepeatable", 1]], [["call", "unrepeatable_marked", 2]])
_SPENDS: Plan = ["call", "unrepeatable", 600]
_TABLE: tuple[Plan, ...] = ([["call", "transact", 1], ["call", "transact", 2]],)

STAGES: dict[str, Stage] = {
    "find before quiet": Stage(profile=Profile(lost_reply=0.3, slow=0.5, lost_request=0.2), plans=_QUERIED),
    "no lease check before send": Stage(profile=Profile(workers=3, dead_man=False, zombie=0.5), plans=_QUERIED),
    "retry of unrepeatable": Stage(profile=Profile(lost_reply=0.5), plans=_ONCE),
    "key per attempt": Stage(profile=Profile(lost_reply=0.5), plans=_KEYED),
    "timeout as failure": Stage(profile=Profile(slow=0.5, lost_reply=0.3), plans=_QUERIED),
    "no epoch check": Stage(profile=Profile(workers=3, dead_man=False, zombie=0.5, pause_point=0.1), plans=_KEYED),
    "refusal closes while another attempt flies": Stage(
        profile=Profile(refused=0.5, slow=0.7), plans=([["call", "idempotent", 1]], *_KEYED)
    ),
    "window ignored": Stage(profile=Profile(workers=1, dead_man=False, lost_reply=0.8, zombie=0.4), plans=_KEYED),
    "no intent before send": Stage(profile=Profile(), plans=_KEYED),
    "send-begun page always believed": Stage(profile=Profile(lost_reply=0.5, crash_every_s=2.0), plans=_ONCE),
    "code goes on past a call it broke off": Stage(
        profile=Profile(slow=0.3, lost_reply=0.3), plans=([["timed", "queryable", 1, 0.3], ["call", "keyed", 2]],)
    ),
    "a living session keeps a run it lost": Stage(profile=Profile(commit_unknown=0.3), plans=(*_KEYED, *_TABLE)),
    "time stands still behind a newer record": Stage(
        profile=Profile(clock_every_s=2.0),
        plans=([["call", "read", 1], ["sleep", 4.0]], [["sleep", 1.5], ["sleep", 4.0]]),
    ),
    "an unapplied result taken as evidence": Stage(
        profile=Profile(workers=3, dead_man=False, pause_point=0.2, crash_point=0.05), plans=_TABLE
    ),
    "key window looked at once": Stage(
        profile=Profile(lost_reply=0.8, full_every_s=3.0, slow_commit=0.2), plans=_KEYED
    ),
    "a person decides before quiet": Stage(profile=Profile(slow=0.7, lost_reply=0.3, person=True), plans=_ONCE),
    "a confirmation broken off is believed": Stage(
        profile=Profile(commit_unknown=0.3, slow_commit=0.3),
        plans=([["timed", "transact", 1, 2.0], ["timed", "keyed", 1, 2.0]],),
    ),
    "a restored journal is taken for the newest": Stage(
        profile=Profile(tasks=3, restore=True),
        plans=([["sleep", 1.5], *_ONCE[0]], [["sleep", 0.5], *_QUERIED[0], *_ONCE[1]]),
    ),
    "a machine that stood still goes on": Stage(
        profile=Profile(workers=1, lost_reply=0.8, freeze_every_s=5.0), plans=([["call", "keyed_found", 1]],)
    ),
    "branches pass a limit together": Stage(
        profile=Profile(slow_commit=0.3),
        plans=([["gather", [["call", "keyed", 600]], [["call", "keyed", 500]]]],),
        gate=True,
    ),
    "a call in doubt does not count": Stage(
        profile=Profile(lost_reply=0.5), plans=([["gather", [_SPENDS], [["sleep", 4.0], _SPENDS]]],), gate=True
    ),
    "a branch moves after its run has ended": Stage(
        profile=Profile(tasks=3, commit_unknown=0.4, lost_reply=0.5, lost_request=0.2),
        plans=([["gather", [["call", "queryable", 1]], [["call", "keyed", 2]], *_TABLE]],),
    ),
}
