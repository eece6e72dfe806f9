"""Why a run rests, and notices: the stored texts never change, and every kind has its builder."""

from __future__ import annotations

import pytest

from holdfast.core import notices
from holdfast.core.notices import Notice, NoticeKind
from holdfast.core.rest import (
    BrokenOff,
    Diverged,
    NeedsPerson,
    Parked,
    Rest,
    Sleep,
    Stopping,
    Suspended,
    WaitsForApproval,
    WaitsForMessage,
    read_rest,
)

STORED: tuple[tuple[Rest, str], ...] = (
    (Sleep(1_731_000_000_000), "sleeping 1731000000000"),
    (WaitsForApproval(), "approval"),
    (WaitsForMessage(), "waiting message"),
    (Parked(), "parked"),
    (BrokenOff(), "broken-off"),
    (Stopping(), "the worker stopped"),
    (Diverged("step 4 was charge, now it is mail"), "diverged: step 4 was charge, now it is mail"),
    (NeedsPerson("max-turns: 50 model calls"), "max-turns: 50 model calls"),
)

ALARMS = (
    NoticeKind.LEVEL,
    NoticeKind.EXPIRING,
    NoticeKind.DRILL,
    NoticeKind.IN_DOUBT,
    NoticeKind.SECRETS,
    NoticeKind.OVER,
)


@pytest.mark.parametrize(("rest", "text"), STORED)
def test_a_rest_is_stored_as_the_same_text_as_ever_and_read_back(rest: Rest, text: str) -> None:
    assert rest.text == text
    assert read_rest(text) == rest
    assert str(Suspended(rest)) == text


@pytest.mark.parametrize("text", ["", "sleeping soon", "poison", "released"])
def test_another_text_asks_a_person(text: str) -> None:
    assert read_rest(text) == NeedsPerson(text)


def test_every_kind_of_notice_has_a_builder() -> None:
    task = "01J9ZK3V5T8Q2M4N6P7R8S9T0V"
    made: list[Notice] = [
        notices.step_parked_notice(task, "4", "charge", "was it done?", epoch=1, now_ms=5),
        notices.task_parked_notice(task, "trip", "diverged: x", epoch=1, now_ms=5),
        notices.approval_notice(task, "trip", ["4", "5"], now_ms=5),
        notices.poison_notice(task, "what kills it?", epoch=1, now_ms=5),
        notices.task_damaged_notice(task, "record 3", epoch=1, now_ms=5),
        notices.stuck_notice(task, "4", now_ms=5),
        notices.unserved_notice("trip", 6, 600_000, since_ms=5),
        notices.clock_behind_notice(90.0, now_ms=7_200_000),
        notices.clock_off_notice(90.0, host="one", now_ms=7_200_000),
        notices.standby_notice("there is none", "set one", since_ms=7),
        notices.dead_letter_notice("env-1", "no key opens it", now_ms=7),
        notices.mail_expired_notice(task, "4", "ada", now_ms=0),
        notices.mail_room_notice("https://r", 50, now_ms=0),
        notices.contradiction_notice(task, "4", "charge", "failed", source="stripe", now_ms=5),
        notices.memory_not_written_notice("journal-full", "no space", day="2026-11-16", now_ms=5),
        notices.second_instance_notice("hfi1", now_ms=5),
        notices.second_mailbox_notice("z6Mk", "https://r", now_ms=5),
        notices.two_profiles_notice("https://r", "d", now_ms=5),
        notices.memory_lag_notice("south", "its roster", since="10:00", since_ms=3, now_ms=5),
        notices.memory_conflict_notice("MEMORY.md", 2, day="2026-11-16", now_ms=5),
        notices.update_refused_notice("south", "bad-update", "damaged", "look", day="2026-11-16", now_ms=5),
        notices.instance_lost_notice("south", "berlin", "s1", now_ms=5),
        notices.unknown_instance_notice("h1", "a folder", now_ms=5),
        notices.relay_contradiction_notice("https://r", "z6Mk", "two heads", "/a/file", now_ms=5),
        notices.quarantined_notice("hfi1", "lost", "another acts", "stop it"),
        notices.keys_replaced_notice("keys-replaced:hf1:1.2", "other keys", "evict", now_ms=5),
        notices.backup_older_folder_notice("older", "recover", now_ms=5),
        notices.backup_notice("usb", "", "well again", "", now_ms=5),
        notices.backup_notice("usb", "stale", "no backup", "plug it in", now_ms=5),
        notices.prune_refused_notice("usb", "missing", "look", now_ms=5),
        notices.journal_damaged_notice("j1", "record 3", now_ms=5),
        *(notices.alarm_notice(kind, "x", "2/1", "it fell", "look", now_ms=5) for kind in ALARMS),
    ]
    kinds = {one.kind for one in made}
    assert kinds == {kind.value for kind in NoticeKind if kind is not NoticeKind.BACKUP} | {"backup-stale"}
    assert all(type(one.kind) is str and one.text for one in made)
    assert [one.notice_id for one in made] == [
        f"parked/{task}/4/1",
        f"parked/{task}/1",
        f"approval/{task}/4,5",
        f"poison/{task}/1",
        f"damaged/{task}/1",
        f"stuck/{task}/4/5",
        "unserved/trip/5",
        "clock/2",
        "clock-off/one/0",
        "standby/7",
        "dead-letter/env-1",
        f"mail-expired/{task}/4",
        "mail-room/https://r/0",
        f"contradiction/{task}/4/stripe",
        "memory/journal-full/2026-11-16",
        "second-instance/hfi1",
        "second-instance/z6Mk",
        "two-profiles/https://r/d",
        "memory-lag/south/3",
        "memory-conflict/MEMORY.md/2026-11-16",
        "bad-update/south/2026-11-16",
        "instance-lost/south/s1",
        "unknown-instance/h1",
        "relay-contradiction/z6Mk",
        "quarantined/hfi1/lost",
        "keys-replaced:hf1:1.2",
        "backup-older-folder:5",
        "backup-well:usb:5",
        "backup-stale:usb:5",
        "prune-refused:usb:5",
        "damaged/j1",
        "level:x:2/1:0",
        "expiring:x:2/1:0",
        "drill:x:2/1:0",
        "in-doubt:x:2/1:0",
        "secrets-not-rotated:x:2/1:0",
        "over:x:2/1:0",
    ]
