"""Alarms of levels and surfaces: told once when something changes, and once when it is over.

`alarms_of` is a pure function of one look (`register.py`); `tell` compares with what was told before, and remembers it
in `instance/alarms.json`, which is this host's own. One process at a time tells; another that looks meanwhile leaves it
to the next round. A notice that could not be handed over is not remembered, so it is told again. Hosts that share a
journal add the same notice under the same id, so it is told once.

The rooms below raise alarms of their own: a place without a verified backup (`backup/upkeep/due.py`), a standby that is
lost (`runtime/engine/upkeep.py`), parked steps. They are not repeated here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.app.notify import NotTold
from holdfast.app.worker import JobContext
from holdfast.core.decoding import decode_json
from holdfast.core.notices import Notice, NoticeKind, Notices, alarm_notice, counted
from holdfast.core.surfaces import DAY_MS, Fact, age_text, day_of
from holdfast.errors import HoldfastError
from holdfast.host.private_files import ensure_private_folder, locked_now, read_private, write_atomically
from holdfast.layout.agent_home import AgentHome, find_home
from holdfast.surfaces.history import note_level
from holdfast.surfaces.level import SKEW_MS, LevelReport
from holdfast.surfaces.register import OpenedJournal, Register, look, look_now

FILE = "alarms.json"
FILE_BYTES_MAX = 1 << 20
FORMAT = 1
LOOK_EVERY_S = 600.0
WARN_MS_MAX = 14 * DAY_MS  # before a proof expires; less where it holds for less than 56 days
SHORT_MS = 7 * DAY_MS  # what holds for less gets no warning: it is renewed by a schedule
# How often each drill is to run, in days. One that never ran is not overdue: the level says what it lacks.
CADENCE_DAYS: Mapping[str, int] = {
    "test-restore": 1,
    "process-kill": 7,
    "hand-off": 7,
    "host-loss": 7,
    "disk-full": 7,
    "place-lost": 7,
    "region-loss": 30,
    "store-failover": 30,
    "keys-lost": 30,
    "old-backup": 30,
}
CADENCE_DEFAULT_DAYS = 90
Send = Callable[[Notice], Awaitable[None]]


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    kind: NoticeKind
    about: str
    sign: str  # told again where this has changed
    text: str
    hint: str

    @property
    def key(self) -> str:
        return f"{self.kind.value}:{self.about}"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a person knows: alarms by their key, and the best level that there was."""

    format: int = FORMAT
    signs: dict[str, str] = {}
    texts: dict[str, str] = {}  # of the same keys
    level: int = 0
    proven_level: int = 0


def alarms_of(register: Register, told: Told) -> list[Alarm]:
    """Everything that a person should know now."""
    found = [*_levels(register.level, told), *_expiring(register.level, register.at_ms)]
    found += _drills([one for one in register.facts if one.name == "drill"], register.at_ms)
    late_ms = register.at_ms - register.targets.rto_s * 1000
    doubts = [one for one in register.facts if one.name == "effect.in-doubt" and (one.at_ms or 0) < late_ms]
    if doubts:
        oldest = min(doubts, key=lambda one: one.at_ms or 0)
        old = age_text(register.at_ms - (oldest.at_ms or 0))
        many = counted(len(doubts), "effect is", "effects are")
        text = f"{many} in doubt for longer than the RTO target; {oldest.about} for {old}"
        hint = f"`holdfast effect show {oldest.about}`, then `holdfast effect settle {oldest.about}`"
        found.append(Alarm(kind=NoticeKind.IN_DOUBT, about="", sign="", text=text, hint=hint))
    old = sorted((one for one in register.facts if one.name == "secret.not-rotated"), key=lambda one: one.about)
    if old:
        names = ", ".join(one.about for one in old)
        text = f"not rotated since the recovery of {day_of(old[0].at_ms or 0)}: {names}"
        hint = f"`holdfast secret rotate {old[0].about}`"
        found.append(Alarm(kind=NoticeKind.SECRETS, about="", sign=names, text=text, hint=hint))
    return found


def _levels(report: LevelReport, told: Told) -> list[Alarm]:
    if report.level >= told.level and report.proven_level >= told.proven_level:
        return []
    had = f"level {told.level}, proven up to {told.proven_level}"
    hint = "" if report.next is None else f"`{report.next.fix}`"
    sign = f"{report.level}/{report.proven_level}"
    return [Alarm(kind=NoticeKind.LEVEL, about="", sign=sign, text=f"{report.text}. It had {had}", hint=hint)]


def _expiring(report: LevelReport, now_ms: int) -> list[Alarm]:
    found = list[Alarm]()
    for one in report.gates:
        if not (one.ok and one.proof and one.until_ms and one.evidence_ms and (one.level or 0) <= report.level):
            continue
        life_ms = one.until_ms - one.evidence_ms
        if life_ms > SHORT_MS and one.until_ms - now_ms <= min(WARN_MS_MAX, life_ms // 4):
            day = day_of(one.until_ms)
            text = f"the proof of level {one.level} expires on {day}: {one.text}"
            found.append(Alarm(kind=NoticeKind.EXPIRING, about=one.id, sign=day, text=text, hint=f"`{one.fix}`"))
    return found


def every_days(slug: str) -> int:
    return CADENCE_DAYS.get(slug, CADENCE_DEFAULT_DAYS)


def _drills(facts: Sequence[Fact], now_ms: int) -> list[Alarm]:
    found = list[Alarm]()
    newest: dict[str, Fact] = {}
    for one in sorted(facts, key=lambda fact: fact.at_ms or 0):
        if not one.value or (one.at_ms or 0) <= now_ms + SKEW_MS:  # a wrong clock proves nothing
            newest[one.about] = one
    for slug, one in newest.items():
        days = every_days(slug)
        age_ms, hint = now_ms - (one.at_ms or 0), f"`holdfast drill run {slug}`"
        if not one.value:
            text = f"the drill {slug} of {day_of(one.at_ms or 0)} failed"
            found.append(Alarm(kind=NoticeKind.DRILL, about=slug, sign=str(one.at_ms), text=text, hint=hint))
        elif age_ms > (days + 1) * DAY_MS:
            text = f"the drill {slug} is overdue: the last one was {age_text(age_ms)} ago, it is due every {days} days"
            found.append(Alarm(kind=NoticeKind.DRILL, about=slug, sign="overdue", text=text, hint=hint))
    return found


async def tell(home: AgentHome, register: Register, send: Send) -> int:
    """Send what a person does not know yet; how many notices. Also keeps the level's history."""
    ensure_private_folder(home.instance)
    with locked_now(home.instance / f"{FILE}.lock") as mine:
        if not mine:
            return 0
        with suppress(HoldfastError, OSError):
            note_level(home, register.level, now_ms=register.at_ms)
        before = _read(home.instance / FILE)
        alarms = {one.key: one for one in alarms_of(register, before)}
        signs, texts, sent = dict(before.signs), dict(before.texts), 0
        for notice, key in _news(alarms, before, register.at_ms):
            if not await _sent(notice, send):
                continue
            sent += 1
            if key in alarms:
                signs[key], texts[key] = alarms[key].sign, alarms[key].text
            else:
                del signs[key], texts[key]
        level = max(before.level, register.level.level)
        proven = max(before.proven_level, register.level.proven_level)
        after = Told(signs=signs, texts=texts, level=level, proven_level=proven)
        if after != before:
            write_atomically(home.instance / FILE, msgspec.json.encode(after))
    return sent


def _news(alarms: Mapping[str, Alarm], told: Told, now_ms: int) -> list[tuple[Notice, str]]:
    """Notices of what is new or has changed, then of what is over; each with its key."""
    found = [
        (alarm_notice(one.kind, one.about, one.sign, one.text, one.hint, now_ms=now_ms), key)
        for key, one in alarms.items()
        if told.signs.get(key) != one.sign
    ]
    over = [key for key in told.signs if key not in alarms]
    for key in over:
        text = f"over: {told.texts[key]}"
        found.append((alarm_notice(NoticeKind.OVER, key, told.signs[key], text, "", now_ms=now_ms), key))
    return found


async def _sent(notice: Notice, send: Send) -> bool:
    try:
        await send(notice)
    except (HoldfastError, OSError):
        return False
    return True


async def tell_once(home: AgentHome, notices: Notices | None) -> int:
    """One look and its notices, for a scheduled run beside no worker. Without a way to a person nothing counts as told:
    a worker, or the first run with [notices], tells it."""

    async def send(notice: Notice) -> None:
        if notices is None:
            raise NotTold("[notices] is not set")
        await notices.tell(notice)

    return await tell(home, await look_now(home, deep=False), send)


async def keep_watch(context: JobContext) -> None:
    """The worker's periodic job: looks every ten minutes, while the worker runs. The journal delivers the notices."""
    while True:
        try:
            home = find_home(context.address.folder)
            if home is None:
                return  # a journal that is no agent's has no level
            opened = OpenedJournal(journal=context.journal, keys=context.keys)
            register = await look(home, opened, now_ms=context.journal.now_ms(), deep=False)
            await tell(home, register, context.journal.add_notice)
        except (HoldfastError, OSError) as error:
            context.log.event("alarms-failed", error=str(error))
        await asyncio.sleep(LOOK_EVERY_S)


def _read(path: Path) -> Told:
    """What was told; nothing where the file cannot be read: then it is told again."""
    try:
        found = decode_json(read_private(path, FILE_BYTES_MAX), Told)
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return Told()
    return found if found.format == FORMAT else Told()
