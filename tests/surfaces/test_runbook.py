"""The runbook: real names, the steps that drills execute, no secret, no section that pretends; it can be printed."""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.backup.places.places import read_places
from holdfast.cli.main import main
from holdfast.drills.probe import APP
from holdfast.surfaces.procedure import Parts
from holdfast.surfaces.procedures import PROCEDURES, get_procedure, procedure_values
from holdfast_proofs.drills import Example, make_example

SECRET = "sk-canary-5b0f6e2d91c84a77"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """An agent with two places, a witness and a secret."""
    root = tmp_path_factory.mktemp("runbook") / "root"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root))
        patch.delenv("HOLDFAST_HOME", raising=False)
        made = make_example(root)
        reads, writes = os.pipe()
        os.write(writes, SECRET.encode())
        os.close(writes)
        assert main(["secret", "set", "mail_token", "--from-fd", str(reads), "--home", str(made.home.folder)]) == 0
        yield made


def printed(*words: str, home: Path, code: int = 0) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["runbook", "print", *words, "--home", str(home)]) == code
    return out.getvalue()


def shape(home: Path) -> dict[str, Any]:
    return json.loads(printed("--json", home=home))


def by_slug(found: dict[str, Any]) -> dict[str, Any]:
    return {one["slug"]: one for one in found["sections"]}


def test_the_runbook_has_the_steps_that_drills_execute(example: Example) -> None:
    """With the agent's names, in the order identity, state, connectivity."""
    found = json.loads(printed("--json", "--app", APP, home=example.home.folder))
    places = read_places(example.home.places_file)
    values = procedure_values(example.home, places, id=found["id"], app=APP)
    sections = by_slug(found)
    assert list(sections) == [one.slug for one in PROCEDURES]
    ranks = [one["rank"] for one in found["sections"]]
    assert ranks == sorted(ranks, key=("identity", "state", "connectivity").index)
    parts = Parts(identity=True, journal=True, places=2, models=True)
    for one in PROCEDURES:
        wanted = () if sections[one.slug]["why_not"] else one.steps(parts)
        assert [step["command"] for step in sections[one.slug]["steps"]] == [step.shown(values) for step in wanted]
        assert sections[one.slug]["digest"] == one.digest


def test_a_person_finds_everything_and_no_secret(example: Example) -> None:
    text = printed(home=example.home.folder)
    root = example.root
    for name in ("place-1", "place-2", "witness", "vault", "second", "arbiter"):
        assert str(root / name) in text, name
    assert "`mail_token`" in text
    assert "the owner of the agent" in text
    assert "Not for this agent: the journal is not in PostgreSQL" in text
    assert "keep it with the recovery sheet" in text
    words = example.words.split()
    whole = text + printed("--json", home=example.home.folder)
    assert SECRET not in whole
    assert not any(f"{first} {second}" in whole for first, second in pairwise(words))
    for unlock in ("unlock", "unlock2"):
        assert (root / unlock).read_text().strip() not in whole


def test_the_commands_without_holdfast_restore_the_agent(example: Example, tmp_path: Path) -> None:
    """Exactly as they are printed, in a plain shell, in any folder, with the words typed."""
    tmp_path /= "a folder"
    tmp_path.mkdir()
    text = printed(home=example.home.folder)
    bare = text.partition("### From the place place-2\n")[2]
    for name in ("paper_key.py", "passphrase.py"):
        block = text.partition(f"### {name}\n")[2]
        (tmp_path / name).write_text(block.partition("```python\n")[2].partition("```")[0])
    script = "set -e\n" + bare.partition("```sh\n")[2].partition("```")[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        input=example.words,
        text=True,
        capture_output=True,
        env={"PATH": path, "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "restored" / "state" / "notes.txt").read_text() == "kept\n"


def test_an_agent_with_nothing_gets_no_section_that_pretends(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    (folder / "holdfast.toml").write_text('agent = "ada"\n')
    found = by_slug(shape(folder))
    assert [slug for slug, one in found.items() if one["steps"]] == ["two-alive"]
    assert "Add a place today" in found["host-loss"]["why_not"]
    for one in found.values():
        assert bool(one["why_not"]) != bool(one["steps"])
    text = printed(home=folder)
    assert "There is no backup to read." in text
    assert list(tmp_path.rglob("*")) == [folder, folder / "holdfast.toml"], "looking writes nothing"


def test_a_folder_without_an_agent_says_so(tmp_path: Path) -> None:
    assert not any(one["steps"] for one in shape(tmp_path)["sections"])
    assert "Nothing is set up yet" in printed(home=tmp_path)


def test_a_locked_vault_leaves_the_commands(example: Example) -> None:
    (example.root / "unlock").rename(example.root / "away")
    try:
        found = shape(example.home.folder)
        text = printed(home=example.home.folder)
    finally:
        (example.root / "away").rename(example.root / "unlock")
    assert found["secrets"] is None
    assert "Their names could not be read" in text
    assert by_slug(found)["host-loss"]["steps"]
    assert by_slug(found)["provider-lost"]["steps"], "whether its tasks ask models is not known"


def test_a_journal_in_postgresql_has_its_own_steps(tmp_path: Path) -> None:
    """Also while the server is away: that is when the page is needed."""
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    url = "postgresql://ada@127.0.0.1:1/agents"
    (folder / "holdfast.toml").write_text(f'agent = "ada"\n[journal]\nurl = "{url}"\n')
    found = by_slug(shape(folder))
    promoted = found["region-loss"]["steps"][1]
    assert promoted["command"] == f"holdfast recover --journal {url} --home {folder}"
    assert not promoted["drilled"]
    assert found["store-failover"]["steps"]
    assert "PostgreSQL" in found["journal-damage"]["why_not"]
    server = get_procedure("host-loss").steps(Parts(journal=True, server=True))
    assert sum("--journal" in one.command for one in server) == 1
    assert "No drill runs this step." in printed(home=folder)


def test_an_agent_that_holdfast_does_not_run_is_started_its_own_way() -> None:
    parts = Parts(identity=True, places=1, start=("bin/start", "{x}"), check=("bin/check",))
    commands = [one.filled({"home": "H", "vault": "V", "second": "S", "place": "P"}) for one in _with_commands(parts)]
    assert ("bin/start", "{x}") in commands
    assert ("bin/check",) in commands
    assert not any("worker" in one for one in commands)


def _with_commands(parts: Parts) -> list[Any]:
    return [one for one in get_procedure("host-loss").steps(parts) if one.command]


def test_pages_are_written_and_only_a_runbook_is_replaced(example: Example, tmp_path: Path) -> None:
    page, text, other = tmp_path / "runbook.html", tmp_path / "runbook.md", tmp_path / "notes"
    other.write_text("mine")
    for _ in range(2):
        assert printed("--html", str(page), "--out", str(text), home=example.home.folder) == ""
    printed("--out", str(other), home=example.home.folder, code=2)
    assert other.read_text() == "mine"
    assert page.stat().st_mode & 0o077 == 0
    made = page.read_text()
    for word in ("<script", "http://", "https://", " src=", "url(", "@import"):
        assert word not in made, word
    commands = [step["command"] for one in shape(example.home.folder)["sections"] for step in one["steps"]]
    assert commands
    for command in filter(None, commands):
        assert html.escape(command) in made
        assert command in text.read_text()
    anchors = set(re.findall(r'id="([a-z-]+)"', made))
    assert set(re.findall(r'href="#([a-z-]+)"', made)) <= anchors
