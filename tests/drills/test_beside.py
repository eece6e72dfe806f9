"""What production does by itself while a drill runs is not the drill's harm; everything else is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.backup.chain.sources import witness_file
from holdfast.cli.main import main
from holdfast.drills.catalogue import get_drill
from holdfast.drills.production import find_harm, look
from holdfast_proofs.drills import Example, make_example


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """A stopped agent with one place and one witness, which other agents use too."""
    root = tmp_path_factory.mktemp("beside") / "root"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root))
        patch.delenv("HOLDFAST_HOME", raising=False)
        yield make_example(root, places=1)


def harm_of(example: Example, *words: str, write: Path | None = None) -> list[str]:
    before = asyncio.run(look(example.home))
    if words:
        assert main([*words, "--home", str(example.home.folder)]) == 0
    if write is not None:
        with open(write, "a", encoding="ascii") as file:
            file.write("changed\n")
    return asyncio.run(find_harm(before))[0]


def test_a_backup_of_a_stopped_agent_is_its_own_work(example: Example) -> None:
    """Timers run both: the head of the snapshot reaches the agent's folder, its place and its witness."""
    heads = witness_file(example.root / "witness", asyncio.run(look(example.home)).log.id).path
    size = heads.stat().st_size
    assert harm_of(example, "backup", "now") == []
    assert heads.stat().st_size > size


def test_a_look_at_the_level_is_no_harm(example: Example) -> None:
    (example.home.levels_file).unlink(missing_ok=True)
    assert harm_of(example, "level", "show") == []
    assert example.home.levels_file.exists()


def test_a_backup_explains_no_other_file(example: Example) -> None:
    notes = example.home.folder / "notes.txt"
    assert harm_of(example, "backup", "now", write=notes) == [f"{notes} changed although the agent is stopped"]


def test_without_a_backup_its_place_does_not_change(example: Example) -> None:
    config = example.root / "place-1" / example.home.name / "repository" / "config"
    assert harm_of(example, write=config) == [f"{config} changed although the agent is stopped"]
    config.write_text(config.read_text().removesuffix("changed\n"))


def test_a_head_that_the_agent_does_not_have_is_harm(example: Example) -> None:
    """A copy that signs with the agent's key, and reaches its witness."""
    heads = witness_file(example.root / "witness", asyncio.run(look(example.home)).log.id)
    own = example.home.heads_file.read_bytes()
    before = asyncio.run(look(example.home))
    assert main(["backup", "now", "--home", str(example.home.folder)]) == 0
    number = heads.read().heads[-1].record.seq
    example.home.heads_file.write_bytes(own)
    assert asyncio.run(find_harm(before))[0] == [f"{heads.path}: head {number} is not the agent's own"]


def test_other_agents_of_a_witness_and_an_arbiter_are_not_looked_at(example: Example) -> None:
    for folder in ("witness", "arbiter"):
        (example.root / folder).mkdir(exist_ok=True)
        assert harm_of(example, write=example.root / folder / "hf1another.jsonl") == []


def test_an_adopted_agent_may_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holdfast does not run it, and cannot tell that it is stopped. Holdfast's own files are equal."""
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    example = make_example(tmp_path / "root", places=1, adopted=True)
    assert harm_of(example, write=example.home.state / "log.md") == []
    seen = asyncio.run(look(example.home))
    for slug in ("process-kill", "disk-full", "journal-damage", "two-alive", "old-backup", "hand-off"):
        assert get_drill(slug).find_reason(seen) == "the agent has no journal", slug
    settings = example.home.settings_file
    assert harm_of(example, write=settings) == [f"{settings} changed although the agent is stopped"]


def test_flipped_bits_of_a_file_prove_nothing_about_a_server(example: Example) -> None:
    seen = asyncio.run(look(example.home))
    assert get_drill("journal-damage").find_reason(seen) == ""
    seen = replace(seen, home=replace(seen.home, journal_url="postgresql://localhost/agents"))
    assert "PostgreSQL" in get_drill("journal-damage").find_reason(seen)
