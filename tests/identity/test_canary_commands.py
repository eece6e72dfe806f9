"""Row 24 over real commands: what is secret is in no argument, environment, log, output or file."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_canaries import planted

from holdfast.identity.paper.phrase import Phrase, read_phrase
from holdfast.identity.vault.age import AgeIdentity
from holdfast.identity.vault.keyset import NEXT, OP
from holdfast.identity.vault.ring import read_escrow
from holdfast.identity.vault.slots import passphrase_key
from holdfast.identity.vault.vault import Vault, open_vault
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.canaries.traces import files_below, hits
from holdfast_proofs.support.command_line import command_line, environment

POLL_S = 0.02  # the shortest of them lives ten times as long
DUMPS = 'ulimit -c 1000; exec "$@"'  # a caller that would keep a dump
Said = list[tuple[str, bytes]]


class Watcher(threading.Thread):
    """Collects arguments, environments and core limits of a process and all below it; also the
    files for a moment that lie in a folder meanwhile."""

    def __init__(self, pid: int, temporary: Path | None = None) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._temporary = temporary
        self._over = threading.Event()
        self.seen: set[tuple[str, bytes]] = set()
        self.core_limits: list[bytes] = []

    def run(self) -> None:
        while not self._over.wait(POLL_S):
            if self._temporary is not None:
                self._look_at(self._temporary)
            for pid in (self._pid, *below(self._pid)):
                for name in ("cmdline", "environ"):
                    raw = read_proc(pid, name)
                    if raw:
                        self.seen.add((f"/proc/{name}", raw))
                self.core_limits += [
                    line for line in read_proc(pid, "limits").splitlines() if line.startswith(b"Max core file size")
                ]

    def _look_at(self, folder: Path) -> None:
        for at, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError):
                    self.seen.add((name, Path(at, name).read_bytes()))

    def end(self) -> None:
        self._over.set()
        self.join()


def read_proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def children(pid: int) -> list[int]:
    return [int(one) for one in read_proc(pid, f"task/{pid}/children").split()]


def below(pid: int) -> list[int]:
    """Children and theirs: what Borg starts, too."""
    direct = children(pid)
    return [*direct, *(inner for one in direct for inner in below(one))]


class Machine:
    """Commands in one folder, with everything they say and show kept for the search."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: Said = []
        self.limits: list[bytes] = []
        for name in ("user", "temporary"):
            (root / name).mkdir(0o700)

    def __call__(
        self,
        *words: str,
        given: dict[str, str] | None = None,
        wanted: str = "",
        code: int = 0,
        secret_out: bool = False,
    ) -> tuple[str, str]:
        """Run it; `given` goes in by descriptors, what comes out at `wanted` is returned too."""
        options, ours, theirs = [*words], list[int](), list[int]()
        for option, text in (given or {}).items():
            read, write = os.pipe()
            os.write(write, text.encode())
            os.close(write)
            options += [option, str(read)]
            theirs.append(read)
        if wanted:
            read, write = os.pipe()
            options += [wanted, str(write)]
            ours.append(read)
            theirs.append(write)
        env = environment(self.root) | {
            "HOME": str(self.root / "user"),
            "TMPDIR": str(self.root / "temporary"),
            "HOLDFAST_HOME": str(self.root / "ada"),
        }
        child = subprocess.Popen(
            ["/bin/sh", "-c", DUMPS, "sh", *command_line(*options)],
            cwd=self.root,
            env=env,
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        watcher = Watcher(child.pid, self.root / "temporary")
        watcher.start()
        for fd in theirs:
            os.close(fd)
        out, err = child.communicate(timeout=120)
        watcher.end()
        assert child.returncode == code, err.decode()
        name = " ".join(words[:2])
        self.said += [(f"{name}: {one}", raw) for one, raw in watcher.seen]
        self.said.append((f"{name}: stderr", err))
        if not secret_out:
            self.said.append((f"{name}: stdout", out))
        self.limits += watcher.core_limits[-1:]
        back = os.read(ours[0], 65_536).decode() if ours else ""
        for fd in ours:
            os.close(fd)
        return out.decode(), back


def keys_of(vault: Vault, *names: str) -> list[str]:
    """Everything that an open vault holds and nobody may see."""
    found = [vault.identity.reveal()]
    for name in names:
        contents = vault.read(name)
        found += [one["seed"] for one in contents.values() if isinstance(one, dict) and "seed" in one]
    if OP in names:
        escrow = read_escrow(vault)
        found += [escrow.vault_root.hex(), escrow.keys.k_effect.hex(), escrow.vault_key]
        found += [key.hex() for key in escrow.keys.journal_keys.values()]
    return found


def secrets_of(root: Path, passphrases: tuple[str, str]) -> list[str]:
    first, second = passphrases
    with open_vault(root / "vault", given=passphrase_key(first)) as vault:
        found = keys_of(vault, OP)
    with open_vault(root / "second", given=passphrase_key(second)) as vault:
        return [*found, *keys_of(vault, NEXT)]


@pytest.mark.slow
def test_row_24_no_secret_is_left_by_any_command(tmp_path: Path) -> None:
    passphrases = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    opened = {"--passphrase-fd": passphrases[0], "--second-passphrase-fd": passphrases[1]}
    hf = Machine(tmp_path)
    places = ("--vault", str(tmp_path / "vault"), "--second", str(tmp_path / "second"))
    _, words = hf("init", "ada", *places, given=opened, wanted="--words-fd")
    phrase = read_phrase(words)
    canaries = [*planted(phrase, passphrases[0]), passphrases[1]]
    canaries += secrets_of(tmp_path, passphrases)
    hf("identity", "rotate", "--yes", given=opened)
    canaries += secrets_of(tmp_path, passphrases)
    wrong = " ".join(("zoo", "zoo", *phrase.words[2:]))
    hf("paper", "print", "--text", given={"--words-fd": words}, secret_out=True)
    hf("paper", "verify", given={"--words-fd": words})
    hf("paper", "verify", given={"--words-fd": wrong}, code=2)
    split, _ = hf("share", "split", "--needed=2", "--total=2", given={"--from-fd": words}, secret_out=True)
    hf("share", "combine", given={"--from-fd": split}, secret_out=True)
    canaries += [
        " ".join(line.split()[at : at + 3])
        for line in split.splitlines()
        for at in range(0, 30, 3)
        if len(line.split()) == 33
    ]
    hf("identity", "evict", "--paper", "--yes", given={"--words-fd": words, **opened})
    canaries += secrets_of(tmp_path, passphrases)
    hf("identity", "rotate", "--yes", given={**opened, "--passphrase-fd": "not the passphrase"}, code=6)
    _, fresh = hf("paper", "replace", "--yes", given={"--words-fd": words, **opened}, wanted="--new-words-fd")
    canaries += [*planted(read_phrase(fresh), passphrases[0]), *secrets_of(tmp_path, passphrases)]
    hf("paper", "verify", given={"--words-fd": words}, code=2)
    hf("paper", "print", "--text", given={"--words-fd": fresh}, secret_out=True)
    hf("paper", "verify", given={"--words-fd": fresh})
    found = list(files_below(tmp_path))
    assert {"ada/kel.jsonl", "vault/op.age", "second/next.age"} <= {name for name, _ in found}
    assert any(name.endswith("/proc/environ") for name, _ in hf.said)
    assert hits([*hf.said, *found], sorted(set(canaries))) == []
    assert not list((tmp_path / "temporary").iterdir())
    assert all(limit.split()[4:6] == [b"0", b"0"] for limit in hf.limits), hf.limits
    check_modes(tmp_path)


def check_modes(root: Path) -> None:
    """Folders 0700, files 0600, whatever the umask of the caller."""
    for path in (one for one in root.rglob("*") if not one.is_symlink()):
        wanted = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == wanted, path


def test_the_search_over_commands_finds_what_is_there(tmp_path: Path, phrase: Phrase) -> None:
    """The same search, with a word in an argument and a key in a file."""
    key = AgeIdentity.new(SeededEntropy(1)).reveal()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)", " ".join(phrase.words[3:7])])
    watcher = Watcher(child.pid)
    watcher.start()
    time.sleep(0.5)
    child.kill()
    child.wait()
    watcher.end()
    (tmp_path / "leak").write_text(f"key = {key}")
    assert hits(watcher.seen, planted(phrase, "x" * 24))
    assert hits(files_below(tmp_path), [key])
