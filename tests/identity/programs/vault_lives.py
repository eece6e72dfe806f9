"""Vaults in all stages of their lives, killed and failed at every call: `vault_lives.py LIFE ROOT EVERY`.

Started with the crash shim loaded. Each trial is a fork: a copy of the prepared folder, armed, one
act; then the parent looks at what is left, finishes the act as a person would, and looks again.
Prints one line of JSON: how many trials of each kind, and what was wrong.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.core.clock import SystemEntropy
from holdfast.errors import HoldfastError, VaultLocked
from holdfast.host.private_files import write_atomically
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.vault_keys import move_keys, read_keys
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import new_phrase
from holdfast.identity.vault.keyset import KeySet, create_vaults
from holdfast.identity.vault.ring import VaultRing, open_escrow, read_escrow
from holdfast.identity.vault.slots import UnlockKey, file_key, new_unlock_text
from holdfast.identity.vault.vault import exists, open_vault
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.shim import Mode, Trace, arm

PAPER = PaperKeys(new_phrase(SeededEntropy(24))).escrow()
UNLOCK, OTHER = (file_key(Path("/unlock"), new_unlock_text(SeededEntropy(n))) for n in (1, 2))
ENTROPY = SystemEntropy()
CALLS_MAX = 500


class Life:
    """One act on a folder, and what must hold after it was cut short anywhere."""

    def prepare(self, root: Path) -> None:
        """What is there before; `place` is, for everyone."""
        _create(root)

    def act(self, root: Path) -> None:
        raise NotImplementedError

    def check(self, root: Path) -> None:
        """Raises where what is left is not exactly one usable key set."""
        raise NotImplementedError

    def finish(self, root: Path) -> None:
        """What a person does next. The act again, here."""
        self.act(root)
        self.check(root)


class Init(Life):
    def prepare(self, root: Path) -> None:
        pass

    def act(self, root: Path) -> None:
        _create(root)

    def check(self, root: Path) -> None:
        if exists(root / "vault"):
            _check_keys(root, None)
            _check_escrow(root)

    def finish(self, root: Path) -> None:
        if not exists(root / "vault"):
            self.act(root)
        self.check(root)
        left = {name for name in os.listdir(root) if name.startswith(".")}
        assert exists(root / "vault"), "no vault"
        assert not left, f"left behind: {left}"


class Rotate(Life):
    """The log is a file with the operational key's public half."""

    def prepare(self, root: Path) -> None:
        _create(root)
        write_atomically(root / "head", _key_set(root).current().op)

    def act(self, root: Path) -> None:
        keys = _key_set(root)
        keys.settle(op=(root / "head").read_bytes())
        staged = keys.stage(ENTROPY)
        write_atomically(root / "head", staged.op)
        keys.settle(op=staged.op)

    def check(self, root: Path) -> None:
        _check_keys(root, (root / "head").read_bytes())


class AddKey(Life):
    def act(self, root: Path) -> None:
        VaultRing(open_vault(root / "vault", given=UNLOCK)).add_journal_key(ENTROPY)

    def check(self, root: Path) -> None:
        _check_escrow(root)


class ChangeSlot(Life):
    def act(self, root: Path) -> None:
        vault = open_vault(root / "vault", given=_which_opens(root))
        vault.add_slot(OTHER, ENTROPY, replace=vault.list_slots()[0].id)

    def check(self, root: Path) -> None:
        _which_opens(root)


class Adopt(Life):
    def prepare(self, root: Path) -> None:
        load_or_create(root / "keys.json", journal_exists=False, entropy=SeededEntropy(7))
        shutil.copy(root / "keys.json", root / "was.json")
        _create(root, ring=read_keys(root / "keys.json"))
        vault = open_vault(root / "vault", given=UNLOCK)
        unlock = file_key(root / "unlock", new_unlock_text(SeededEntropy(1)))
        vault.add_slot(unlock, ENTROPY)
        write_atomically(root / "unlock", new_unlock_text(SeededEntropy(1)))

    def act(self, root: Path) -> None:
        move_keys(root / "keys.json", open_vault(root / "vault", given=UNLOCK))

    def check(self, root: Path) -> None:
        was = read_keys(root / "was.json")
        _repoint(root)
        ring = load_or_create(root / "keys.json", journal_exists=True, entropy=ENTROPY)
        assert (ring.k_effect, ring.journal_key(1)) == (was.k_effect, was.journal_keys[1])


LIVES: dict[str, type[Life]] = {
    "init": Init,
    "rotate": Rotate,
    "add-key": AddKey,
    "change-slot": ChangeSlot,
    "adopt": Adopt,
}


def _create(root: Path, ring: Any = None) -> None:
    create_vaults(
        root / "vault",
        root / "second",
        escrow=PAPER.recipient,
        keys=[UNLOCK],
        second_keys=[OTHER],
        entropy=ENTROPY,
        places=[Path("place")],
        ring=ring,
    )


def _key_set(root: Path) -> KeySet:
    return KeySet(ops=open_vault(root / "vault", given=UNLOCK), nexts=open_vault(root / "second", given=OTHER))


def _check_keys(root: Path, head: bytes | None) -> None:
    keys = _key_set(root)
    named = [one for one in (keys.current(), keys.find_pending()) if one]
    chosen = next(one for one in named if head in (None, one.op))
    assert keys.get_op(chosen.op).signs_for(chosen.op)
    assert keys.get_next(chosen.next).signs_for(chosen.next)


def _check_escrow(root: Path) -> None:
    """Whatever key is in use is in every copy, and the paper opens each."""
    used = read_escrow(open_vault(root / "vault", given=UNLOCK)).keys
    for folder in ("vault", "second", "place") if not _changed(root) else ("vault", "place"):
        copy = open_escrow((root / folder / "escrow.age").read_bytes(), PAPER).keys
        assert used.journal_keys.items() <= copy.journal_keys.items(), folder
        assert used.k_effect == copy.k_effect


def _changed(root: Path) -> bool:
    return read_escrow(open_vault(root / "vault", given=UNLOCK)).keys.current > 1


def _which_opens(root: Path) -> UnlockKey:
    opened: list[UnlockKey] = []
    for key in (UNLOCK, OTHER):
        try:
            open_vault(root / "vault", given=key).read("op")
            opened.append(key)
        except VaultLocked:
            pass
    assert len(opened) == 1, f"{len(opened)} slots open"
    return opened[0]


def _repoint(root: Path) -> None:
    """A trial is a copy of a folder, so what names a path is put right before it is looked at."""
    raw = (root / "keys.json").read_text()
    fields = json.loads(raw)
    if fields["format"] == 2:
        fields["vault"] = str(root / "vault")
        (root / "keys.json").write_text(json.dumps(fields))
        vault = open_vault(root / "vault", given=UNLOCK)
        unlock = file_key(root / "unlock", new_unlock_text(SeededEntropy(1)))
        vault.add_slot(unlock, ENTROPY)


def fail_at(number: int) -> None:
    """The number-th act on files fails with EIO."""
    count = 0

    def failing(original: Callable[..., Any], counts: Callable[..., bool]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            if counts(*args):
                count += 1
                if count == number:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            return original(*args, **options)

        return call

    def always(*_: Any) -> bool:
        return True

    def creates(_: Any, flags: int = 0, *__: Any) -> bool:
        return bool(flags & os.O_CREAT)

    for name in ("write", "fsync", "rename", "mkdir"):
        setattr(os, name, failing(getattr(os, name), always))
    os.open = failing(os.open, creates)


def trial(life: Life, base: Path, root: Path, act: Callable[[], None]) -> tuple[str, int]:
    """What was wrong, and how the child ended."""
    shutil.copytree(base, root)
    child = os.fork()
    if child == 0:
        os.chdir(root)
        act()
        try:
            life.act(root)
        except (HoldfastError, OSError):
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os.chdir(root)
    try:
        life.check(root)
        life.finish(root)
    except (HoldfastError, OSError, AssertionError, StopIteration) as error:
        return f"{type(error).__name__}: {error}", status
    finally:
        os.chdir("/")
        shutil.rmtree(root)
    return "", status


def main(name: str, folder: Path, *, every: int = 1) -> None:
    """All calls, or each so many-th."""
    life, base, root = LIVES[name](), folder / "base", folder / "trial"
    base.mkdir(mode=0o700)
    os.chdir(base)
    (base / "place").mkdir(mode=0o700)
    life.prepare(base)
    trace = Trace.shared()
    wrong, counts = list[str](), dict[str, int]()

    def run(mode: Mode, at: int) -> bool:
        said, status = trial(life, base, root, lambda: arm(trace, mode, at=at, root=root))
        calls = trace.calls()
        where = f"{calls[-1].name} {calls[-1].where}" if calls else ""
        if said:
            wrong.append(f"{mode.name} at {at} ({where}): {said}")
        if trace.reached:
            counts[mode.name] = counts.get(mode.name, 0) + 1
            if mode.name.startswith("KILL") and not os.WIFSIGNALED(status):
                wrong.append(f"{mode.name} at {at}: not killed")
        return trace.reached

    run(Mode.TRACE, 0)
    total = trace.count
    for at in range(1, total + 1, every):
        run(Mode.KILL_BEFORE, at)
        run(Mode.FULL_ANY, at)
    # Between two calls nothing durable changes: killed after one is killed before the next.
    run(Mode.KILL_AFTER, total)
    at = 1
    while run(Mode.SYNC_ERROR, at):
        at += every
    for at in range(1, CALLS_MAX, every):
        said, status = trial(life, base, root, functools.partial(fail_at, at))
        if said:
            wrong.append(f"EIO at {at}: {said}")
        if os.waitstatus_to_exitcode(status) == 0:
            break
        counts["EIO"] = at
    print(json.dumps({"life": name, "calls": total, "trials": counts, "wrong": wrong}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), every=int(sys.argv[3]))
