"""Task ids and effect keys: the same for ever, and never the same for two."""

from __future__ import annotations

import hashlib
import hmac
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import (
    TaskId,
    effect_key,
    effect_key_bytes,
    effect_key_from_bytes,
    fingerprint,
    fingerprint_key,
    parse_effect_key,
    parse_task_id,
    parse_task_prefix,
    task_id_bytes,
    task_id_for_request,
    task_id_from_bytes,
)
from holdfast.errors import BadReference

K_EFFECT = bytes(range(32))
TASK = TaskId("01J9ZK3V5T8Q2M4N6P7R8S9T0V")
raw_ids = st.binary(min_size=16, max_size=16)


@given(raw_ids)
def test_a_task_id_keeps_all_its_bits(raw: bytes) -> None:
    text = task_id_from_bytes(raw)
    assert len(text) == 26
    assert task_id_bytes(text) == raw
    assert parse_task_id(text) == text


@given(st.lists(raw_ids, min_size=2))
def test_task_ids_sort_as_their_bytes_do(raws: list[bytes]) -> None:
    assert [task_id_bytes(one) for one in sorted(map(task_id_from_bytes, raws))] == sorted(raws)


@given(raw_ids)
def test_case_and_look_alike_letters_are_forgiven(raw: bytes) -> None:
    text = task_id_from_bytes(raw)
    typed = text.lower().replace("1", "l").replace("0", "o")
    assert parse_task_id(f"  {typed}\n") == text
    assert parse_task_id(text.replace("1", "I").replace("0", "O")) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "8" + "0" * 25,
        "Z" * 26,
        "0" * 25,
        "0" * 27,
        "0" * 25 + "U",
        "0" * 25 + "é",
        "0" * 25 + "\0",
        "0" * 25 + "-",
    ],
)
def test_what_is_no_task_id_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        parse_task_id(text)


def test_the_effect_key_never_changes() -> None:
    """Worked out a second way, and pinned: keys already sent must be found again for ever."""
    message = b"holdfast/effect/1\0" + TASK.encode() + b"\0" + b"4.2.1"
    digest = hmac.new(K_EFFECT, message, hashlib.sha256).digest()
    number = int.from_bytes(digest[:16], "big")
    number = number & ~(0xF << 76) | 8 << 76
    number = number & ~(0x3 << 62) | 2 << 62
    key = effect_key(K_EFFECT, TASK, "4.2.1")
    assert key == str(uuid.UUID(int=number))
    assert key == "5406b6d1-fb57-80d0-a79d-3b7b8bad269a"


@given(raw_ids, st.sampled_from(["1", "4", "4.2.1", "4.r1", "4.c1", "@charge-1"]))
def test_an_effect_key_is_a_uuid_of_version_8(raw: bytes, ordinal: str) -> None:
    key = effect_key(K_EFFECT, task_id_from_bytes(raw), ordinal)
    parsed = uuid.UUID(key)
    assert str(parsed) == key
    assert (parsed.version, parsed.variant) == (8, uuid.RFC_4122)
    assert key == effect_key(K_EFFECT, task_id_from_bytes(raw), ordinal)
    assert effect_key_from_bytes(effect_key_bytes(key)) == key
    assert parse_effect_key(f" {key.upper()} ") == key


def test_no_two_slots_share_a_key() -> None:
    ordinals = [str(n) for n in range(1, 200)] + [f"4.{n}" for n in range(1, 50)]
    ordinals += [f"4.r{n}" for n in range(1, 50)] + [f"@{n}" for n in range(50)]
    tasks = [task_id_from_bytes(bytes([n]) * 16) for n in range(4)]
    keys = {effect_key(k, task, one) for k in (K_EFFECT, b"x" * 32) for task in tasks for one in ordinals}
    assert len(keys) == 2 * len(tasks) * len(ordinals)


@pytest.mark.parametrize("text", ["", "4", "7bf1c7d4-1b6d", "z" * 32, "7bf1c7d4" * 5])
def test_what_is_no_effect_key_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        parse_effect_key(text)


def test_a_request_id_always_stands_for_the_same_task() -> None:
    def made(agent: str = "ada", name: str = "trip", request_id: str = "o-77") -> TaskId:
        return task_id_for_request(K_EFFECT, agent=agent, name=name, request_id=request_id)

    assert made() == made()
    assert parse_task_id(made()) == made()
    others = {made(), made(agent="bob"), made(name="mail"), made(request_id="o-78")}
    assert len(others) == 4
    assert made(agent="a", name="bc") != made(agent="ab", name="c")
    assert made() != task_id_for_request(b"x" * 32, agent="ada", name="trip", request_id="o-77")


def test_a_salt_gives_a_request_id_another_task() -> None:
    def made(salt: bytes, agent: str = "ada") -> TaskId:
        return task_id_for_request(K_EFFECT, agent=agent, name="trip", request_id="o-77", salt=salt)

    assert made(b"") == task_id_for_request(K_EFFECT, agent="ada", name="trip", request_id="o-77")
    assert len({made(b""), made(bytes(16)), made(b"x" * 16)}) == 3
    assert made(b"x" * 16, agent="bob") != made(b"x" * 16)


@given(st.text(max_size=8), st.binary(max_size=8), st.text(max_size=8), st.binary(max_size=8))
def test_fingerprints_tell_calls_apart(tool: str, args: bytes, tool2: str, args2: bytes) -> None:
    tool, tool2 = tool.replace("\0", "_"), tool2.replace("\0", "_")
    key = fingerprint_key(K_EFFECT)
    one = fingerprint(key, tool=tool, canonical_args=args)
    two = fingerprint(key, tool=tool2, canonical_args=args2)
    assert len(one) == 16
    assert (one == two) is ((tool, args) == (tool2, args2))
    assert one != fingerprint(fingerprint_key(b"x" * 32), tool=tool, canonical_args=args)


@pytest.mark.parametrize("length", [1, 2, 25, 26])
def test_any_beginning_of_a_task_id_is_a_prefix(length: int) -> None:
    text = str(task_id_from_bytes(bytes(range(16))))[:length]
    assert parse_task_prefix(text) == text


@pytest.mark.parametrize("text", ["", "8", "0" * 27])
def test_what_no_task_id_begins_with_is_no_prefix(text: str) -> None:
    with pytest.raises(BadReference) as caught:
        parse_task_prefix(text)
    assert "its first letters" in caught.value.hint
