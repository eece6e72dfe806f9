"""`holdfast tool check`: far ends with different habits are told apart by what they do."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.tool_check import Kind, Looked, Outcome, Seen, judge
from holdfast.core.effect import Effect, Keyed, Queryable, Unrepeatable
from holdfast.downstream.process import start_blocking
from holdfast_proofs.support.command_line import Commands

APP = """
import hashlib, json
import holdfast

KEYED = dict(window_s=86_400, refusals_stored=True)

async def pay(call, url, card, cents, **headers):
    asked = {{"card": card, "cents": cents}}
    answer = await call.http.post(url + "/charges", json=asked, headers=headers, refused_on=(402,))
    return answer.json()

@holdfast.tool(effect=holdfast.Keyed(fingerprint="checked", **KEYED), http_only=True)
async def stripe_like(call, card: str, cents: int):
    return await pay(call, "{checked}", card, cents)

@holdfast.tool(effect=holdfast.Keyed(fingerprint="ignored", **KEYED), http_only=True)
async def silent(call, card: str, cents: int):
    return await pay(call, "{ignored}", card, cents)

OWN_KEY = holdfast.Keyed(fingerprint="checked", key_header="X-Key", **KEYED)

@holdfast.tool(effect=OWN_KEY, http_only=True)
async def by_body(call, card: str, cents: int):
    # A far end that knows a request by its key and its body together.
    both = hashlib.sha256(f"{{call.effect_key}} {{card}} {{cents}}".encode()).hexdigest()
    return await pay(call, "{checked}", card, cents, **{{"Idempotency-Key": both}})

@holdfast.tool(effect=holdfast.Queryable(max_delay_s=0), http_only=True)
async def found_later(call, n: int):
    sent = {{"n": n, "reference": call.effect_key}}
    return (await call.http.post("{queryable}/effects", json=sent)).json()

@found_later.find
async def find(call, n: int):
    found = (await call.http.get("{queryable}/effects?reference=" + call.effect_key)).json()
    seen = found["effects"]
    if len(seen) > 1:
        return holdfast.Many(seen)
    return holdfast.Found(seen[0]) if seen else holdfast.Absent()

@holdfast.tool(effect=holdfast.Keyed(fingerprint="checked", **KEYED), http_only=True)
async def wishful(call, n: int):
    return (await call.http.post("{unrepeatable}/effects", json={{"n": n}})).json()

@holdfast.tool(effect=holdfast.Unrepeatable(), http_only=True)
async def honest(call, n: int):
    return (await call.http.post("{unrepeatable}/effects", json={{"n": n}})).json()

@holdfast.tool(effect=holdfast.Read())
async def look(call, n: int):
    return n

@holdfast.task
async def nothing(run):
    return None

@holdfast.task
async def order(run):
    return await run.call(stripe_like, card="tok_1", cents=100)

tasks = [nothing]
app = holdfast.App([order])
"""
GOOD, OTHER, DECLINED = (
    json.dumps({"card": card, "cents": cents})
    for card, cents in (("tok_1", 100), ("tok_1", 200), ("tok_declined", 100))
)


@pytest.fixture(scope="module")
def far_ends() -> Generator[dict[str, str]]:
    with (
        start_blocking("payment") as checked,
        start_blocking("payment", fingerprint="ignored") as ignored,
        start_blocking("queryable") as queryable,
        start_blocking("unrepeatable") as unrepeatable,
    ):
        yield {
            "checked": checked.url,
            "ignored": ignored.url,
            "queryable": queryable.url,
            "unrepeatable": unrepeatable.url,
        }


@pytest.fixture
def shop(hf: Commands, folder: Path, far_ends: dict[str, str]) -> Commands:
    (folder / "shop.py").write_text(APP.format(**far_ends))
    return hf


def check(shop: Commands, tool: str, *words: str, code: int = 0) -> dict[str, Any]:
    given = ("tool", "check", "shop.py:tasks", tool, *words, "--yes", "--wait", "1", "--json")
    return shop(*given, code=code).json


def failed(found: dict[str, Any]) -> set[str]:
    return {one["habit"] for one in found["checks"] if one["ok"] is False}


def test_a_far_end_like_stripes_is_keyed(shop: Commands) -> None:
    found = check(shop, "stripe_like", GOOD, "--other", OTHER, "--refused", DECLINED)
    assert (found["proved"], found["fingerprint"], found["refusals_stored"], found["ok"]) == (
        "Keyed",
        "checked",
        True,
        True,
    )
    assert failed(found) == set()


def test_one_that_silently_gives_the_first_answer_is_keyed_and_ignores_bodies(shop: Commands) -> None:
    found = check(shop, "silent", GOOD, "--other", OTHER)
    assert (found["proved"], found["fingerprint"], found["ok"]) == ("Keyed", "ignored", True)


def test_one_that_makes_a_second_object_of_a_new_body_is_not_keyed(shop: Commands) -> None:
    found = check(shop, "by_body", GOOD, "--other", OTHER, code=1)
    assert (found["declared"], found["proved"], found["ok"]) == ("Keyed", "Unrepeatable", False)
    assert failed(found) == {"other body"}


def test_one_that_can_only_be_asked_is_queryable(shop: Commands) -> None:
    found = check(shop, "found_later", '{"n": 1}', "--other", '{"n": 2}')
    assert (found["proved"], found["ok"]) == ("Queryable", True)
    assert "repeat" in failed(found)
    lookup = next(one for one in found["checks"] if one["habit"] == "lookup")
    assert "many" in lookup["seen"], "it was sent twice, and the lookup says so"


def test_one_that_offers_nothing_is_unrepeatable_whatever_is_declared(shop: Commands) -> None:
    wishful = check(shop, "wishful", '{"n": 1}', "--other", '{"n": 2}', code=1)
    assert (wishful["proved"], wishful["ok"]) == ("Unrepeatable", False)
    assert failed(wishful) == {"repeat", "crowd", "other body"}
    assert check(shop, "honest", '{"n": 1}')["ok"]


def test_what_was_not_tried_is_not_proven(shop: Commands) -> None:
    found = check(shop, "stripe_like", GOOD, code=1)
    assert found["proved"] == "Unrepeatable"
    assert [one["habit"] for one in found["checks"] if one["ok"] is None] == ["other body", "lookup", "refusals"]


def test_a_table_for_people(shop: Commands) -> None:
    words = ("tool", "check", "shop.py:tasks", "by_body", GOOD, "--other", OTHER, "--yes")
    done = shop(*words, code=1)
    assert "a used key with another body is done a second time" in done.out
    assert "proved: Unrepeatable; declared: Keyed: the tool declares more than was proved" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing", "{}"), "the app has no tool 'missing'"),
        (("look", '{"n": 1}'), "look is Read: Holdfast cannot test this effect class from outside"),
        (("honest", "[1]"), "ARGS must be a JSON object"),
        (("honest", "{not json"), "ARGS is not JSON"),
        (("honest", '{"m": 1}'), "unexpected 'm', missing 'n'"),
        (("honest", '{"n": 1}', "--at-once", "1"), "--at-once must be between 2 and 100"),
        (("honest", '{"n": 1}', "--wait", "-1"), "--wait must be between 0 and 3600 seconds"),
    ],
)
def test_bad_words(shop: Commands, words: tuple[str, ...], said: str) -> None:
    done = shop("tool", "check", "shop.py:tasks", *words, "--yes", "--json", code=2)
    assert said in done.error["message"]


def test_nothing_is_sent_without_a_yes(shop: Commands) -> None:
    done = shop("tool", "check", "shop.py:tasks", "honest", '{"n": 1}', "--json", code=2)
    assert "9 real requests" in done.error["message"]


def test_a_tool_that_only_a_task_names_is_found(shop: Commands) -> None:
    words = ("tool", "check", "shop.py:app")
    assert "real requests" in shop(*words, "stripe_like", GOOD, "--json", code=2).error["message"]
    assert shop(*words, "silent", GOOD, "--json", code=2).error["hint"] == "it has: stripe_like"


# the judgement, by hand-made answers


def seen(**changes: Any) -> Seen:
    """A far end that keeps everything, but for these."""
    one, two, three = (Outcome(Kind.ANSWER, value) for value in (b"1", b"2", b"3"))
    good = Seen(
        first=one,
        again=one,
        fresh=two,
        crowd=[three, Outcome(Kind.BUSY)],
        after_crowd=three,
        other=Outcome(Kind.KEY_REUSED),
        refused=Outcome(Kind.REFUSED),
        mended=Outcome(Kind.REFUSED),
        found=Looked.FOUND,
        unused=Looked.ABSENT,
    )
    for name, value in changes.items():
        setattr(good, name, value)
    return good


CHECKED = Keyed(window_s=60, fingerprint="checked", refusals_stored=True)
SILENT = Outcome(Kind.ANSWER, b"1")


@pytest.mark.parametrize(
    ("changes", "effect", "proved", "ok"),
    [
        ({}, CHECKED, "Keyed", True),
        ({}, Unrepeatable(), "Keyed", True),
        ({}, Keyed(window_s=60, fingerprint="ignored", refusals_stored=True), "Keyed", False),
        ({}, Keyed(window_s=60, fingerprint="checked", refusals_stored=False), "Keyed", False),
        ({"mended": Outcome(Kind.ANSWER)}, CHECKED, "Keyed", False),
        ({"fresh": SILENT}, CHECKED, "Queryable", False),
        ({"fresh": SILENT}, Queryable(), "Queryable", True),
        ({"again": Outcome(Kind.ANSWER, b"9")}, CHECKED, "Queryable", False),
        ({"again": Outcome(Kind.FAILED, b"500")}, CHECKED, "Queryable", False),
        ({"after_crowd": Outcome(Kind.ANSWER, b"9")}, CHECKED, "Queryable", False),
        ({"crowd": [Outcome(Kind.FAILED)]}, CHECKED, "Queryable", False),
        ({"other": None}, CHECKED, "Queryable", False),
        ({"other": Outcome(Kind.ANSWER, b"9")}, CHECKED, "Queryable", False),
        ({"found": Looked.ABSENT, "other": None}, Queryable(), "Unrepeatable", False),
        ({"found": Looked.UNSURE, "other": None}, Queryable(), "Unrepeatable", False),
        ({"unused": Looked.FOUND, "other": None}, Queryable(), "Unrepeatable", False),
        ({"found": None, "other": None}, Unrepeatable(), "Unrepeatable", True),
    ],
)
def test_what_answers_prove(changes: dict[str, Any], effect: Effect, proved: str, ok: bool) -> None:
    verdict = judge(seen(**changes), effect)
    assert (verdict.proved, verdict.ok) == (proved, ok)
