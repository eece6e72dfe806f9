"""What became of the last runs to a place: three times that mean different things.

When a backup was last tried, when one was last made, and when one was last restored for a test
and compared. Only the third counts as a backup.

It also says which snapshots the place must have: those that were made or seen there, until we
remove them ourselves. A listing that lacks one is a loss that another program caused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

OK = "ok"
MISSING = "snapshots-missing"
SHOWN_MAX = 5
SNAPSHOTS_MAX = 5_000  # far above what the rules keep


class PlaceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one place. Times are milliseconds since 1970; 0: never."""

    tried_ms: int = 0
    result: str = ""  # "ok", or the code of the error
    message: str = ""
    failures: int = 0  # in a row
    made_ms: int = 0
    made: str = ""  # the newest snapshot that was made
    snapshots: tuple[str, ...] = ()  # all that were made here and not removed by us, oldest first
    verified_ms: int = 0
    verified: str = ""  # the newest snapshot that was restored for a test
    verify_s: float = 0.0  # how long that took
    notified: str = msgspec.field(default="", name="told")  # the last trouble in a notice; "": all is well
    companions: str = msgspec.field(default="", name="beside")  # digest of the companion files
    mail_key_exp: int = 0  # unix seconds: the end of the newest mail key in the escrow.age that is there
    pruned: tuple[str, ...] = ()  # removed by us, oldest first
    missing: tuple[str, ...] = ()  # of `snapshots`: not in the newest listing
    spared: tuple[str, ...] = ()  # not pruned before `spared_until_ms`
    spared_until_ms: int = 0


def tried(state: PlaceState, *, now_ms: int, result: str = OK, message: str = "") -> PlaceState:
    """After a run, whatever became of it."""
    failures = 0 if result == OK else state.failures + 1
    return msgspec.structs.replace(state, tried_ms=now_ms, result=result, message=message, failures=failures)


def made(state: PlaceState, *, now_ms: int, snapshot: str) -> PlaceState:
    kept = (*(one for one in state.snapshots if one != snapshot), snapshot)[-SNAPSHOTS_MAX:]
    return msgspec.structs.replace(state, made_ms=now_ms, made=snapshot, snapshots=kept)


def removed(state: PlaceState, snapshots: Collection[str]) -> PlaceState:
    """Before snapshots are removed: what a kill leaves in the place is then only not asked for."""
    kept = tuple(one for one in state.snapshots if one not in snapshots)
    missing = tuple(one for one in state.missing if one not in snapshots)
    before = (one for one in state.pruned if one not in snapshots)
    pruned = (*before, *sorted(snapshots))[-SNAPSHOTS_MAX:]
    return msgspec.structs.replace(state, snapshots=kept, missing=missing, pruned=pruned)


def seen(state: PlaceState, *, listed: Collection[str], named: Sequence[str], before: Collection[str]) -> PlaceState:
    """After a listing. `named`: what valid heads name, oldest first.
    `before` is what the place was known to hold when the listing was asked for: what a run beside this one has made
    since is not missing. What was seen there once must stay there until we remove it ourselves; a missing one stays in
    `snapshots`, so that no later run forgets it. A missing snapshot no longer counts as verified."""
    known = {*state.snapshots, *state.pruned}
    new = tuple(one for one in named if one in listed and one not in known)
    missing = tuple(one for one in state.snapshots if one in before and one not in listed)
    after = msgspec.structs.replace(state, snapshots=(*new, *state.snapshots)[-SNAPSHOTS_MAX:], missing=missing)
    if state.verified in missing:
        after = msgspec.structs.replace(after, verified="", verified_ms=0)
    return after


def spare(state: PlaceState, snapshots: Sequence[str], *, until_ms: int) -> PlaceState:
    """These are not pruned before that time."""
    every = tuple(dict.fromkeys((*state.spared, *snapshots)))[-SNAPSHOTS_MAX:]
    return msgspec.structs.replace(state, spared=every, spared_until_ms=until_ms)


def shown(state: PlaceState) -> tuple[str, str]:
    """The result a person is shown, and its message: a good run does not hide missing snapshots."""
    if state.missing and state.result in ("", OK):
        return MISSING, missing_text(state)
    return state.result, state.message


def missing_text(state: PlaceState) -> str:
    names = state.missing[:SHOWN_MAX]
    more = len(state.missing) - len(names)
    return (
        f"{len(state.missing)} snapshots that were there are missing, and Holdfast did not remove "
        f"them: {', '.join(names)}" + (f" and {more} more" if more else "")
    )


def verified(state: PlaceState, *, now_ms: int, snapshot: str, took_s: float = 0.0) -> PlaceState:
    """After a test restore that was compared with the signed manifest."""
    return msgspec.structs.replace(state, verified_ms=now_ms, verified=snapshot, verify_s=took_s)
