"""Every setting is documented with its default, and the page's example is a valid file."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import msgspec

from holdfast.app.health import METRICS, PREFIX
from holdfast.layout.engine_settings import Settings
from holdfast.layout.settings import AGENT_SECTIONS, KEYS, AgentSettings, make_settings, read_fields

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
TABLE = re.compile(r"^\| `(?:\[(\w+)\] )?(\w+)` \| ([^|]+) \|", re.MULTILINE)
IN_WORDS = {"name", "renew_every_s", "command", "webhook"}  # defaults that are no plain value
NOT_IN_THE_FILE = {"pace"}  # for tests; the page says so


def test_every_setting_is_in_the_table_with_its_default() -> None:
    page = (REFERENCE / "settings.md").read_text().partition("## Environment")[0]
    rows = {(section, key): default for section, key, default in TABLE.findall(page)}
    defaults = Settings()
    wanted = {place: getattr(defaults, field) for place, (field, _) in KEYS.items()}
    of_the_agent = AgentSettings()
    for section in AGENT_SECTIONS:
        for one in msgspec.structs.fields(getattr(of_the_agent, section)):
            wanted[section, one.name] = getattr(getattr(of_the_agent, section), one.name)
    assert set(rows) == set(wanted)
    for place, value in wanted.items():
        if place[1] not in IN_WORDS:
            assert rows[place].strip('"` ') == _shown(value), place


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "[]" if value == () else str(value)


def test_every_field_of_settings_can_be_set() -> None:
    known = {field for field, _ in KEYS.values()}
    assert {one.name for one in fields(Settings)} == known | NOT_IN_THE_FILE
    page = (REFERENCE / "settings.md").read_text()
    assert all(f"`{name}`" in page for name in NOT_IN_THE_FILE)


def test_the_example_is_a_valid_file(tmp_path: Path) -> None:
    page = (REFERENCE / "settings.md").read_text()
    example = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    path = tmp_path / "holdfast.toml"
    path.write_text(example[1])
    settings = make_settings(read_fields(path))
    assert settings.agent == "ada"
    assert settings.notice_command[0] == "/usr/local/bin/tell-a-person"


def test_every_metric_is_in_the_table() -> None:
    page = (REFERENCE / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE)
    assert rows == [(PREFIX + name, kind) for name, (kind, _) in METRICS.items()]
