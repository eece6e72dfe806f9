"""Notices: what a person should know, and the one list of their kinds.

Each kind has one builder here. `kind`, `notice_id` and the fields are read by programs: they never change their
meaning. A notice is told once for each `notice_id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec


class NoticeKind(StrEnum):
    PARKED = "parked"  # a step or a task asks a person
    APPROVAL = "approval"  # a task waits for a person's approval
    UNSERVED = "unserved"  # tasks wait, and no live worker serves their name
    POISON = "poison"  # a task killed its worker again and again
    DAMAGED = "damaged"  # the journal, or the records of a task
    STUCK = "stuck"  # a tool runs on after its timeout
    CLOCK_BEHIND = "clock-behind"
    CLOCK_OFF = "clock-off"  # of a host, against that of a journal that several share
    STANDBY = "standby"  # no synchronous standby has the commits of a shared journal, or it cannot be seen
    CONTRADICTION = "contradiction"  # evidence against a closed step
    MEMORY = "memory"  # the memory files cannot be written
    MEMORY_LAG = "memory-lag"  # an instance of the agent has not confirmed memory updates for long
    MEMORY_CONFLICT = "memory-conflict"  # a merge kept lines that may have been removed
    UPDATE_REFUSED = "update-refused"  # a memory update that is damaged, or not from an enrolled instance
    DEAD_LETTER = "dead-letter"  # a message to the agent that cannot be read
    MAIL_EXPIRED = "mail-expired"  # a message of the agent that its recipient never took
    MAIL_ROOM = "mail-room"  # a relay has little room left for the agent's mail
    SECOND_INSTANCE = "second-instance"
    RELAY = "relay-contradiction"  # a relay has signed two answers that cannot both be true
    QUARANTINED = "quarantined"  # this instance may not act
    INSTANCE_LOST = "instance-lost"  # its worker was found dead; the other instances continue
    UNKNOWN_INSTANCE = "unknown-instance"  # a folder that is not enrolled uses the shared journal
    KEYS_REPLACED = "keys-replaced"
    BACKUP_OLDER_FOLDER = "backup-older-folder"
    BACKUP_WELL = "backup-well"
    BACKUP = "backup-"  # followed by what is wrong at a place: `stale`, `missing` or the code of an error
    PRUNE_REFUSED = "prune-refused"
    LEVEL = "level"  # the level of the agent, or its proof, fell
    EXPIRING = "expiring"  # a proof expires soon
    DRILL = "drill"  # a drill failed, or is overdue
    IN_DOUBT = "in-doubt"  # effects are in doubt for longer than their target
    SECRETS = "secrets-not-rotated"  # since a recovery
    OVER = "over"  # one of the five before this one is over


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a person should know, told once per change."""

    notice_id: str
    kind: str  # one of NoticeKind; text, so that an old program can read a new journal
    task_id: str = ""
    ordinal: str = ""
    text: str
    hint: str = ""
    at_ms: int = 0


class Notices(Protocol):
    """Tells a person. Returning means delivered; raising means it is tried again later."""

    async def tell(self, notice: Notice) -> None: ...


def _notice(
    kind: NoticeKind, notice_id: str, text: str, hint: str, *, task_id: str = "", ordinal: str = "", now_ms: int = 0
) -> Notice:
    return Notice(
        notice_id=notice_id, kind=kind.value, task_id=task_id, ordinal=ordinal, text=text, hint=hint, at_ms=now_ms
    )


# of tasks and steps


def step_parked_notice(
    task_id: str, ordinal: str, tool: str, question: str, *, epoch: int, now_ms: int, hint: str = ""
) -> Notice:
    where = f"{task_id}/{ordinal}"
    text = f"task {task_id} step {ordinal} ({tool}) is parked: {question}"
    hint = hint or f"`holdfast effect show {where}`, then `holdfast effect settle {where}`"
    told = f"parked/{where}/{epoch}"
    return _notice(NoticeKind.PARKED, told, text, hint, task_id=task_id, ordinal=ordinal, now_ms=now_ms)


def task_parked_notice(task_id: str, name: str, question: str, *, epoch: int, now_ms: int) -> Notice:
    text = f"task {task_id} ({name}) is parked: {question}"
    hint = f"`holdfast task show {task_id}`, then `holdfast task retry {task_id}`"
    return _notice(NoticeKind.PARKED, f"parked/{task_id}/{epoch}", text, hint, task_id=task_id, now_ms=now_ms)


def approval_notice(task_id: str, name: str, asked: Sequence[str], *, now_ms: int) -> Notice:
    ordinal = asked[0] if asked else ""
    text = f"task {task_id} ({name}) waits for an approval of {', '.join(asked)}"
    hint = f"`holdfast approval list`, then `holdfast approval grant {task_id}/{ordinal}`"
    told = f"approval/{task_id}/{','.join(asked)}"[:500]
    return _notice(NoticeKind.APPROVAL, told, text, hint, task_id=task_id, ordinal=ordinal, now_ms=now_ms)


def poison_notice(task_id: str, question: str, *, epoch: int, now_ms: int) -> Notice:
    text = f"task {task_id} is parked: {question}"
    hint = f"`holdfast task show {task_id}`, then `holdfast task retry {task_id}`"
    return _notice(NoticeKind.POISON, f"poison/{task_id}/{epoch}", text, hint, task_id=task_id, now_ms=now_ms)


def task_damaged_notice(task_id: str, finding: str, *, epoch: int, now_ms: int) -> Notice:
    text = f"task {task_id} is parked: {finding}"
    hint = "keep the file and run `holdfast doctor --deep`"
    return _notice(NoticeKind.DAMAGED, f"damaged/{task_id}/{epoch}", text, hint, task_id=task_id, now_ms=now_ms)


def stuck_notice(task_id: str, ordinal: str, *, now_ms: int) -> Notice:
    text = f"task {task_id} step {ordinal} still runs after its timeout and cannot be stopped"
    hint = "let the tool pass CancelledError on; restart the worker to settle the step"
    told = f"stuck/{task_id}/{ordinal}/{now_ms}"
    return _notice(NoticeKind.STUCK, told, text, hint, task_id=task_id, ordinal=ordinal, now_ms=now_ms)


def contradiction_notice(task_id: str, ordinal: str, tool: str, state: str, *, source: str, now_ms: int) -> Notice:
    text = f"task {task_id} step {ordinal} ({tool}) is recorded as {state}, but {source} says otherwise"
    hint = f"`holdfast effect show {task_id}/{ordinal}`; compensate or correct by hand"
    told = f"contradiction/{task_id}/{ordinal}/{source}"[:300]
    return _notice(NoticeKind.CONTRADICTION, told, text, hint, task_id=task_id, ordinal=ordinal, now_ms=now_ms)


def unserved_notice(name: str, tasks: int, age_ms: int, *, since_ms: int, build: str = "") -> Notice:
    text, hint = waits_unserved(name, tasks, age_ms, build=build), serves_it(name, build=build)
    told = f"unserved/{name}/{build}/{since_ms}" if build else f"unserved/{name}/{since_ms}"
    return _notice(NoticeKind.UNSERVED, told, text, hint, now_ms=since_ms + age_ms)


def serves_it(name: str, *, build: str = "") -> str:
    """What to do about it."""
    if not build:
        return f"start a worker whose app has {name}: `holdfast worker APP`"
    return (
        f"start that build: `holdfast worker APP --build {build}`; if it is gone for good, let another build finish "
        f"its tasks: `holdfast worker APP --build NEW --take-over {build}`"
    )


def counted(count: int, one: str, many: str) -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {many}"


def waits_unserved(name: str, tasks: int, age_ms: int, *, build: str = "") -> str:
    if build:
        count = counted(tasks, "open task is", "open tasks are")
        return f"no live worker has build {build}, to which {count} pinned ({name}, the oldest {_age(age_ms // 1000)})"
    count = counted(tasks, "task waits", "tasks wait")
    return f"no live worker serves {name} ({count}, the oldest {_age(age_ms // 1000)})"


def _age(seconds: int) -> str:
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


# of the journal, the machine and the agent


def journal_damaged_notice(journal_id: str, finding: str, *, now_ms: int) -> Notice:
    text = f"the journal is damaged: {finding}"
    hint = "`holdfast doctor --deep` lists all findings"
    return _notice(NoticeKind.DAMAGED, f"damaged/{journal_id}", text, hint, now_ms=now_ms)


CLOCK_HINT = "set the clock: `timedatectl set-ntp true`"


def clock_behind_notice(behind_s: float, *, now_ms: int) -> Notice:
    text = (
        f"the machine's clock is {behind_s:.0f} s behind the journal's newest record; "
        "key windows may close early, sleeping tasks wake later, nothing is repeated"
    )
    told = f"clock/{now_ms // 3_600_000}"  # once an hour
    return _notice(NoticeKind.CLOCK_BEHIND, told, text, CLOCK_HINT, now_ms=now_ms)


def clock_off_notice(ahead_s: float, *, host: str, now_ms: int) -> Notice:
    told = f"clock-off/{host}/{now_ms // 86_400_000}"  # once a day
    return _notice(NoticeKind.CLOCK_OFF, told, clock_off_text(ahead_s), CLOCK_HINT, now_ms=now_ms)


def clock_off_text(ahead_s: float) -> str:
    where = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead_s):,.0f} s {where} the database's. Tasks go by the database's, so nothing "
        "is early, late or repeated; this machine's own log has the wrong time"
    )


def standby_notice(text: str, hint: str, *, since_ms: int) -> Notice:
    return _notice(NoticeKind.STANDBY, f"standby/{since_ms}", text, hint, now_ms=since_ms)


def memory_not_written_notice(code: str, error: str, *, day: str, now_ms: int) -> Notice:
    text = f"the agent's memory files could not be written: {error}"
    hint = "the lines stay in the journal until they can be written; see `holdfast explain memory`"
    return _notice(NoticeKind.MEMORY, f"memory/{code}/{day}", text, hint, now_ms=now_ms)


def memory_lag_notice(instance: str, waits: str, *, since: str, since_ms: int, now_ms: int) -> Notice:
    text = f"the instance {instance} has not confirmed memory updates since {since}" + (f": {waits}" if waits else "")
    hint = "start its worker, or `holdfast instance remove` it where it is gone for good; `holdfast doctor` says more"
    return _notice(NoticeKind.MEMORY_LAG, f"memory-lag/{instance}/{since_ms}", text, hint, now_ms=now_ms)


def memory_conflict_notice(file: str, lines: int, *, day: str, now_ms: int) -> Notice:
    text = f"a merge of {file} kept {lines} lines of which Holdfast does not know whether they were removed"
    hint = "look at `unsure` in .holdfast/merges.jsonl and remove the lines that you do not want"
    return _notice(NoticeKind.MEMORY_CONFLICT, f"memory-conflict/{file}/{day}", text, hint, now_ms=now_ms)


def update_refused_notice(instance: str, code: str, error: str, hint: str, *, day: str, now_ms: int) -> Notice:
    text = f"Holdfast did not take a memory update from where {instance} sends them: {error}"
    return _notice(NoticeKind.UPDATE_REFUSED, f"{code}/{instance}/{day}", text, hint, now_ms=now_ms)


def dead_letter_notice(envelope: str, fault: str, *, now_ms: int) -> Notice:
    text = f"a message to this agent cannot be read and was not handled: {fault}"
    hint = "ask the sender to send it again, as a new message"
    return _notice(NoticeKind.DEAD_LETTER, f"dead-letter/{envelope}"[:300], text, hint, now_ms=now_ms)


def dead_letters_notice(most: int, *, now_ms: int) -> Notice:
    text = f"more than {most} messages to this agent within an hour cannot be read: the journal does not have the rest"
    hint = "the worker's log has a line `mail-dead` for each; refuse mail of strangers if it does not end"
    return _notice(NoticeKind.DEAD_LETTER, f"dead-letters/{now_ms // 3_600_000}", text, hint, now_ms=now_ms)


def mail_expired_notice(task_id: str, ordinal: str, to: str, *, now_ms: int) -> Notice:
    text = f"the message of task {task_id} step {ordinal} to {to} has expired: its recipient has not signed for it"
    hint = "`holdfast mail dead` lists it; `holdfast mail send` sends it again"
    told = f"mail-expired/{task_id}/{ordinal}"
    return _notice(NoticeKind.MAIL_EXPIRED, told, text, hint, task_id=task_id, ordinal=ordinal, now_ms=now_ms)


def mail_room_notice(relay: str, percent: int, *, now_ms: int) -> Notice:
    text = mail_room_text(relay, percent)
    told = f"mail-room/{relay}/{now_ms // 3_600_000}"[:300]  # once an hour
    return _notice(NoticeKind.MAIL_ROOM, told, text, MAIL_ROOM_HINT, now_ms=now_ms)


def mail_room_text(relay: str, percent: int) -> str:
    return f"the relay {relay} has used {percent} % of its room for this agent's mail: at 100 % it refuses new mail"


MAIL_ROOM_HINT = "a verified backup makes room: `holdfast backup now`; if mail waits, start a worker of the agent"


def second_instance_notice(instance: str, *, now_ms: int) -> Notice:
    text = (
        f"another instance of this agent asks for its lease (key {instance}): "
        "a copy of its folder, or a backup that was started"
    )
    hint = "find that instance and stop it; it sends nothing while this instance holds the lease"
    return _notice(NoticeKind.SECOND_INSTANCE, f"second-instance/{instance}", text, hint, now_ms=now_ms)


def second_mailbox_notice(instance: str, relay: str, *, now_ms: int) -> Notice:
    text = (
        f"another instance of this agent (key {instance}) takes its mail at {relay}: a copy of its folder runs "
        "elsewhere. The one that started later gets the mail; both do the agent's other work"
    )
    hint = "find that copy and stop it. If there is none, the agent's keys are stolen: `holdfast identity evict`"
    return _notice(NoticeKind.SECOND_INSTANCE, f"second-instance/{instance}", text, hint, now_ms=now_ms)


def two_profiles_notice(relay: str, digest: str, *, now_ms: int) -> Notice:
    """`digest` is of what the relay holds, so that further evidence is another notice."""
    text = f"the relay {relay} holds two different profiles or backup heads of one version, both signed by this agent"
    hint = "another copy of the agent runs: stop it. If there is none, its keys are stolen: `holdfast identity evict`"
    return _notice(NoticeKind.SECOND_INSTANCE, f"two-profiles/{relay}/{digest}", text, hint, now_ms=now_ms)


def relay_contradiction_notice(relay: str, key: str, why: str, path: str, *, now_ms: int) -> Notice:
    """Told once for each key of a relay: with another key it is another relay."""
    text = f"the relay {relay} contradicts itself ({why}): it lies, or its disk was put back to an older day"
    hint = f"`holdfast relay add ADDRESS --instead-of {relay}`; the proof is {path}: show it to the relay's operator"
    return _notice(NoticeKind.RELAY, f"relay-contradiction/{key}", text, hint, now_ms=now_ms)


def quarantined_notice(instance: str, state: str, why: str, hint: str) -> Notice:
    text = f"this instance of the agent may not act: {why}"
    return _notice(NoticeKind.QUARANTINED, f"quarantined/{instance}/{state}", text, hint)


def instance_lost_notice(name: str, host: str, session: str, *, now_ms: int) -> Notice:
    """`session` is that of its last worker: each death is one notice, whichever host sees it."""
    text = f"instance {name} on {host} was lost: its worker was found dead, and the other instances continue its tasks"
    hint = f"start its worker again, or remove it: `holdfast instance remove {name}`"
    return _notice(NoticeKind.INSTANCE_LOST, f"instance-lost/{name}/{session}", text, hint, now_ms=now_ms)


def unknown_instance_notice(host_id: str, who: str, *, now_ms: int) -> Notice:
    text = f"a folder that is not enrolled opened the journal of this agent, and waits: {who}"
    hint = "if you do not know it, stop it; if it is yours: `holdfast instance join` there"
    return _notice(NoticeKind.UNKNOWN_INSTANCE, f"unknown-instance/{host_id}", text, hint, now_ms=now_ms)


def keys_replaced_notice(news: str, text: str, hint: str, *, now_ms: int) -> Notice:
    """`news` says how far this machine has come in the key log."""
    return _notice(NoticeKind.KEYS_REPLACED, news, text, hint, now_ms=now_ms)


# of backups


def backup_older_folder_notice(text: str, hint: str, *, now_ms: int) -> Notice:
    kind = NoticeKind.BACKUP_OLDER_FOLDER
    return _notice(kind, f"{kind.value}:{now_ms}", text, hint, now_ms=now_ms)


def backup_notice(place: str, trouble: str, text: str, hint: str, *, now_ms: int) -> Notice:
    """`trouble` is empty where the place is well again."""
    kind = f"{NoticeKind.BACKUP.value}{trouble}" if trouble else NoticeKind.BACKUP_WELL.value
    return Notice(notice_id=f"{kind}:{place}:{now_ms}", kind=kind, text=text, hint=hint, at_ms=now_ms)


def prune_refused_notice(place: str, text: str, hint: str, *, now_ms: int) -> Notice:
    return _notice(NoticeKind.PRUNE_REFUSED, f"prune-refused:{place}:{now_ms}", text, hint, now_ms=now_ms)


# of levels and surfaces


def alarm_notice(kind: NoticeKind, about: str, sign: str, text: str, hint: str, *, now_ms: int) -> Notice:
    """The builder of LEVEL, EXPIRING, DRILL, IN_DOUBT, SECRETS and OVER. `about` tells alarms of one kind apart, `sign`
    the states of one alarm; the same state is told once an hour at most."""
    told = f"{kind.value}:{about}:{sign}:{now_ms // 3_600_000}"[:500]
    return _notice(kind, told, text, hint, now_ms=now_ms)
