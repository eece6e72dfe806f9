"""The test vectors of the formats are what the code computes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.ids import (
    TaskId,
    effect_key,
    effect_key_bytes,
    fingerprint,
    fingerprint_key,
    parse_task_id,
    task_id_bytes,
    task_id_for_request,
    task_id_from_bytes,
)
from holdfast.core.ordinal import parse_ordinal
from holdfast.core.values import canonical, checked
from holdfast.identity.journal_keys.keyfile import KeyFile, parse
from holdfast.journal.chain import first_link, next_link, place
from holdfast.journal.seal import KeyWraps, key_check
from holdfast.journal.sqlite.host.page_reader import blank, parsed
from holdfast.runtime.task.content import NO_PREFIX, content_bytes, digest_of, link

FORMATS = Path(__file__).parents[2] / "docs" / "formats"


def vectors(page: str) -> Any:  # Any: JSON that the page shows
    """The last JSON block of a page."""
    blocks = re.findall(r"^```json\n(.*?)^```$", (FORMATS / page).read_text(), re.M | re.S)
    return json.loads(blocks[-1])


EFFECT = vectors("effect-key.md")
JOURNAL = vectors("journal.md")
INSTANCE = vectors("instance.md")
K_EFFECT = bytes.fromhex(EFFECT["k_effect"])


@pytest.mark.parametrize("one", EFFECT["tasks"], ids=lambda one: one["task_id"])
def test_a_request_id_gives_the_published_task_id(one: dict[str, str]) -> None:
    salt = bytes.fromhex(one.get("salt", ""))
    found = task_id_for_request(K_EFFECT, agent=one["agent"], name=one["name"], request_id=one["request_id"], salt=salt)
    assert found == one["task_id"]
    assert task_id_bytes(found).hex() == one["raw"]
    assert task_id_from_bytes(bytes.fromhex(one["raw"])) == parse_task_id(one["task_id"].lower())


@pytest.mark.parametrize("one", EFFECT["effects"], ids=lambda one: one["effect_key"])
def test_task_and_ordinal_give_the_published_effect_key(one: dict[str, str]) -> None:
    ordinal = parse_ordinal(one["ordinal"])
    assert effect_key(K_EFFECT, TaskId(one["task_id"]), ordinal) == one["effect_key"]
    raw = effect_key_bytes(effect_key(K_EFFECT, TaskId(one["task_id"]), ordinal))
    assert raw[6] >> 4 == 8
    assert raw[8] >> 6 == 2


def test_no_two_published_slots_share_a_key() -> None:
    assert len({one["effect_key"] for one in EFFECT["effects"]}) == len(EFFECT["effects"])


@pytest.mark.parametrize("one", EFFECT["fingerprints"], ids=lambda one: one["fingerprint"])
def test_tool_and_arguments_give_the_published_fingerprint(one: dict[str, Any]) -> None:
    key = fingerprint_key(K_EFFECT)
    assert key.hex() == EFFECT["fingerprint_key"]
    raw = canonical(checked(one["args"], what="args"))
    assert raw.decode() == one["canonical"]
    assert fingerprint(key, tool=one["tool"], canonical_args=raw).hex() == one["fingerprint"]


def test_a_journal_knows_its_ring_by_the_published_check() -> None:
    ring = KeyFile(k_effect=K_EFFECT, journal_keys={1: bytes(32)}, current_journal_key=1)
    assert key_check(ring).hex() == EFFECT["key_check"]


def test_two_records_are_chained_as_published() -> None:
    raw = bytes.fromhex(JOURNAL["task_raw"])
    link = first_link(raw)
    assert link.hex() == JOURNAL["first_link"]
    for one in JOURNAL["records"]:
        raws = {key: bytes.fromhex(one[key]) for key in ("effect_key", "fingerprint", "body")}
        plain = {key: one[key] for key in one.keys() - {*raws, "hash", "place"}}
        link = next_link(link, **raws, **plain)
        assert link.hex() == one["hash"]
        where = place(raw, seq=one["seq"], kind=one["kind"], ordinal=one["ordinal"], epoch=one["epoch"])
        assert where.decode() == one["place"]


def test_a_published_payload_opens_with_its_published_keys() -> None:
    ring = parse(json.dumps(JOURNAL["ring"]).encode(), where="the page")
    raw = bytes.fromhex(JOURNAL["task_raw"])
    data_key = bytes.fromhex(JOURNAL["data_key"])
    sealer = KeyWraps(ring).open_data_key(1, data_key, raw)
    record = JOURNAL["records"][0]
    plain = sealer.open(bytes.fromhex(record["body"]), record["place"].encode())
    assert json.loads(plain) == JOURNAL["plain"]


def test_a_new_page_has_the_published_bytes() -> None:
    page = blank(session_id=INSTANCE["session_id"], boot_id=INSTANCE["boot_id"], incarnation=INSTANCE["incarnation"])
    for offset, wanted in INSTANCE["bytes"].items():
        at = int(offset)
        assert page[at : at + len(wanted) // 2].hex() == wanted
    image = parsed(page, session_id=INSTANCE["session_id"])
    assert image is not None
    assert (image.incarnation, image.sequence, image.stopped) == (INSTANCE["incarnation"], 0, False)


def test_contents_are_named_and_chained_as_the_page_says() -> None:
    talk = vectors("talk.md")
    digest = digest_of(content_bytes(talk["message"]))
    assert digest == talk["digest"]
    assert link(NO_PREFIX, digest) == talk["prefix_1"]
    assert link(talk["prefix_1"], digest) == talk["prefix_2"]
