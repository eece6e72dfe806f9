"""Borders of text: settings, words of the command line, ids, JSON values, evidence."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import msgspec

from holdfast.app.worker import parse_order
from holdfast.cli.input.input_values import parse_json
from holdfast.cli.main import build_parser, check_words
from holdfast.core import ids, ordinal, values
from holdfast.errors import BadReference, BadValue, HoldfastError
from holdfast.identity.journal_keys import keyfile
from holdfast.layout.fleet import fleet_folders, read_fleet
from holdfast.layout.settings import make_settings, read_fields
from holdfast_proofs.fuzz.feed import Feed, as_text, law


@cache
def folder() -> Path:
    """A place of this process's own for files that are read back at once."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def settings(raw: bytes) -> None:
    path = folder() / "holdfast.toml"
    path.write_bytes(raw)
    made = make_settings(read_fields(path))
    law(made.renew_every_s < made.lease_ttl_s, "a lease that is not renewed in time")


def fleet(raw: bytes) -> None:
    path = folder() / "agents.txt"
    path.write_bytes(raw)
    homes = fleet_folders(read_fleet(path))
    law(len(set(homes)) == len(homes) > 0, "an agent that is served twice, or none")
    law(all(home.startswith("/") for home in homes), "a folder that depends on where the worker is started")


def words(raw: bytes) -> None:
    """argv, one word per line, through checks and parser; nothing is run."""
    given = [as_text(line) for line in raw.split(b"\n")]
    check_words(given)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        build_parser(given).parse_args(given)  # --help and --version end by SystemExit


def order(raw: bytes) -> None:
    parse_order(as_text(raw))


def keys(raw: bytes) -> None:
    ring = keyfile.parse(raw, where="keys.json")
    law(len(ring.k_effect) == keyfile.KEY_BYTES, "a key of another length")
    law(len(ring.journal_key(ring.current_journal_key)) == keyfile.KEY_BYTES, "no current key")


def names(raw: bytes) -> None:
    """Task ids, effect keys, ordinals and slots, as a person types them."""
    text = as_text(raw)
    with contextlib.suppress(BadReference):
        task_id = ids.parse_task_id(text)
        law(ids.task_id_from_bytes(ids.task_id_bytes(task_id)) == task_id, "task id round trip")
    with contextlib.suppress(BadReference):
        key = ids.parse_effect_key(text)
        law(ids.effect_key_from_bytes(ids.effect_key_bytes(key)) == key, "effect key round trip")
    with contextlib.suppress(HoldfastError):
        law(ordinal.parse_ordinal(ordinal.slot_ordinal(text)) == f"@{text}", "slot")
    place = ordinal.parse_ordinal(text)
    law(sorted([place, place], key=ordinal.sort_key) == [place, place], "sorting")
    law(ordinal.base(ordinal.retry_slot(place, 1)) == ordinal.base(place), "retry slot")


def json_values(raw: bytes) -> None:
    """JSON of a person: checked, kept, read back, fingerprinted. Round trips are exact."""
    value = values.checked(parse_json(as_text(raw), what="--args"), what="value")
    kept = values.decode(values.encode(value, what="value"))
    law(_same(kept, value), "what is read back is not what was checked")
    canonical = values.canonical(value)
    law(values.canonical(values.copied(value)) == canonical, "a copy has another fingerprint")
    again = values.checked(json.loads(canonical), what="canonical")
    law(values.canonical(again) == canonical, "the canonical form is not canonical")


def evidence(raw: bytes) -> None:
    """What a webhook says: key or place, result, source."""
    feed = Feed(raw)
    key, task, place, source = feed.text(), feed.text(), feed.text(), feed.text()
    if key:
        ids.effect_key_bytes(ids.parse_effect_key(key))
    else:
        ids.parse_task_id(task)
        ordinal.parse_ordinal(place)
    result = parse_json(as_text(feed.rest()), what="--result")
    kept = values.checked(result, what="evidence")
    values.encode(kept, what="evidence")
    body = values.checked({"result": kept, "source": source}, what="evidence")
    law(_same(values.decode(values.encode(body, what="evidence")), body), "evidence round trip")


def answer_body(raw: bytes) -> None:
    """A JSON body of a far end, kept as a result."""
    from holdfast.runtime.http.message import Response

    found = Response(status=200, headers={}, body=raw).json()
    with contextlib.suppress(BadValue):
        kept = values.checked(found, what="result")
        law(_same(values.decode(values.encode(kept, what="result")), kept), "result round trip")


def _same(one: object, other: object) -> bool:
    """Equal also in kind: 1 is not 1.0 and not true."""
    return msgspec.json.encode(one) == msgspec.json.encode(other) and repr(one) == repr(other)
