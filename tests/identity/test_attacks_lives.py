"""Rows of the attack table that a whole agent withstands: crashes, lost writes, two machines."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, KeysReplaced, NotNow
from holdfast.identity.acts.recover_identity import recover_identity
from holdfast.identity.log.log_state import KeyLog, is_final
from holdfast.identity.records.records import LogPosition
from holdfast_proofs.identity_kills.__main__ import sweep
from holdfast_proofs.identity_kills.lives import judged_log, witnessed
from holdfast_proofs.support.agents import ENTROPY, SODIUM, World


def test_row_15_a_rotation_killed_anywhere_leaves_one_usable_key_set(measured: Callable[[str], None]) -> None:
    """A sample; `make identity-kills` tries every call."""
    report = sweep("rotate", points=3)
    assert report["wrong"] == []
    assert report["trials"]["KILL_BEFORE"] == 3
    assert report["calls"] > 40
    measured(f"identity, rotate: {report['calls']} calls, trials {report['trials']}")


@pytest.mark.parametrize("life", ["import", "recover", "replace-paper"])
def test_row_16_nothing_is_published_before_its_keys_are_safe(life: str, measured: Callable[[str], None]) -> None:
    """Each write fails in turn, or the process dies there. A sample; the command tries all."""
    report = sweep(life, points=2)
    assert report["wrong"] == []
    assert report["trials"]["EIO"] == report["trials"]["FULL_ANY"] == 2
    measured(f"identity, {life}: {report['calls']} calls, trials {report['trials']}")


def test_row_06_two_machines_recover_at_once_with_the_same_words(tmp_path: Path) -> None:
    """One recovery, one usable key set; the other machine is told that it came second."""
    tmp_path.chmod(0o700)
    names = ("w1", "w2", "w3")
    world = World(tmp_path, names=names)
    world.make()
    id_, words = world.log().id, world.words[0]
    machines = [World(tmp_path, names=names, home_name=name) for name in ("one", "two")]

    async def both() -> list[object]:
        return await asyncio.gather(
            *(recover_identity(one.order(), words=words, entropy=ENTROPY, port=SODIUM) for one in machines),
            return_exceptions=True,
        )

    ended = asyncio.run(both())
    won = [one for one in ended if not isinstance(one, BaseException)]
    lost = [one for one in ended if isinstance(one, BaseException)]
    assert len(won) == len(lost) == 1
    assert isinstance(lost[0], KeysReplaced | NotNow), lost
    log = judged_log(world)
    assert log is not None
    assert (log.id, log.position) == (id_, (1, 1))
    assert is_final(log, log.position)
    assert len({one.generations[1].tier.digest for one in witnessed(world)}) == 1
    usable = [one for one in machines if _speaks(one, log)]
    assert len(usable) == 1
    with pytest.raises((KeysReplaced, NotNow)):  # again: still second, nothing is evicted
        next(one for one in machines if one not in usable).recover(words)
    after = judged_log(world)
    assert after is not None
    assert after.position == LogPosition(1, 1)


def _speaks(world: World, log: KeyLog) -> bool:
    from holdfast.identity.records.encodings import key_bytes

    assert log.operational is not None
    if not world.vault.exists():
        return False
    with world.keys() as keys:
        try:
            keys.get_op(key_bytes(log.operational.members[0])).wipe()
        except HoldfastError:
            return False
    return True


def test_row_27_an_empty_machine_with_sheet_and_card_is_the_same_agent(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """Fresh HOME, empty environment, every witness gone: one command, and the id answers."""
    tmp_path.chmod(0o700)
    world = World(tmp_path / "old")
    world.root.mkdir(0o700)
    world.make()
    id_, words = world.log().id, world.words[0]
    empty = tmp_path / "empty"
    empty.mkdir(0o700)
    (empty / "card.txt").write_text(f"PUBLIC CARD\n\n{world.card()}\n")
    shutil.rmtree(world.root)
    began = time.monotonic()
    hf(
        empty,
        "identity",
        "recover",
        "--home",
        "ada",
        "--second",
        "second",
        "--card",
        "card.txt",
        "--new-witness",
        "witness",
        "--unlock-file",
        "u1",
        "--second-unlock-file",
        "u2",
        "--yes",
        "--words-fd",
        "0",
        given=words,
    )
    took = time.monotonic() - began
    challenge = "drawn-just-now-0001"
    answer = hf(empty, "identity", "answer", "--home", "ada", "--challenge", challenge)
    said = hf(
        empty,
        "identity",
        "check-answer",
        "--log",
        "ada/kel.jsonl",
        "--id",
        id_,
        "--challenge",
        challenge,
        "--answer",
        "-",
        given=answer,
    )
    assert "answers  yes" in said
    measured(f"empty machine, sheet and card: back in {took:.1f} s of machine time")
    assert took < 10


def hf(folder: Path, *words: str, given: str = "") -> str:
    """The command in a process that knows nothing but its own packages."""
    env = {"HOME": str(folder), "PATH": os.defpath}
    if "PYTHONPATH" in os.environ:
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        cwd=folder,
        env=env,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
