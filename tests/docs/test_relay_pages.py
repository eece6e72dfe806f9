"""The pages about relays name every setting, figure, limit and call of the server."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
from starlette.routing import Route

from holdfast.host.log import Log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.witness.witness_folder import witness_signer
from holdfast.relay.protocol import calls
from holdfast.relay.server import limits, logs, registry
from holdfast.relay.server.app import Relay
from holdfast.relay.server.settings import RelaySettings
from holdfast.relay.server.store import Store

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS = (DOCS / "reference" / "relay-settings.md").read_text()
PROTOCOL = (DOCS / "formats" / "relay-protocol.md").read_text() + (DOCS / "formats" / "mail.md").read_text()


def shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_every_setting_is_in_the_table_with_its_default() -> None:
    rows = dict[str, str]()
    for names, default in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]+) \|", SETTINGS, re.M):
        rows |= dict.fromkeys(re.findall(r"\w+", names), default.replace("`", "").strip().strip('"'))
    fields = {one.name: shown(one.default) for one in msgspec.structs.fields(RelaySettings)}
    assert {name: rows.get(name) for name in fields} == fields
    example = re.search(r"```toml\n(.*?)```", SETTINGS, re.S)
    assert example is not None
    assert msgspec.convert(tomllib.loads(example[1]), RelaySettings).url == "https://relay.example"


def test_the_limits_are_those_of_the_code() -> None:
    for text in (
        f"{limits.READS.burst:g} at once, then {limits.READS.per_s:g} a second",
        f"{limits.WRITES.burst:g} at once, then {limits.WRITES.per_s:g} a second",
        f"{limits.AGENT_WRITES.burst:g} at once, then {limits.AGENT_WRITES.per_s:g} a second",
        f"{logs.LOG_BYTES_MAX >> 20} MiB",
        f"| handles of one agent | {calls.HANDLES_MAX} |",
        f"| {registry.EVIDENCE_MAX} for each agent |",
        f"{limits.LOG_BODY_BYTES_MAX >> 10} KiB",
    ):
        assert text in SETTINGS, text
    assert registry.FORWARD_S == 90 * 86_400


def test_every_call_and_every_figure_is_described(tmp_path: Path) -> None:
    store = Store(tmp_path / "relay")
    try:
        relay = Relay(store, witness_signer(tmp_path / "relay"), RelaySettings(), Sodium(), Log())
        for route in relay.app().routes:
            assert isinstance(route, Route)
            method = next(iter((route.methods or set()) - {"HEAD"}))
            page = PROTOCOL if route.path.startswith("/v1/") else SETTINGS
            assert f"`{method} {route.path}" in page, route.path
        relay.counts["GET", 200] = 1
        names = set(re.findall(r"^(holdfast_relay_\w+)", relay._figures(), re.M))
    finally:
        store.close()
    assert names == set(re.findall(r"`(holdfast_relay_\w+)`", SETTINGS))
