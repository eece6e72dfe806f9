"""What a drill runs on the other machine of `--on ssh://host`. It is sent there as text and needs Python alone.

    hold           unpack Holdfast from standard input, open a shadow, answer requests; when standard input ends, the
                   shadow ends and everything is removed
    enter PID      read one line of JSON, then become that command in the shadow of this process

Each answer is one line of JSON. Everything is below one folder of the user's cache, which is locked while a drill uses
it: after a kill of this machine, the next drill removes what was left.
"""

import fcntl
import json
import os
import platform
import shutil
import stat
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from typing import IO, Any

CACHE = os.path.join(os.path.expanduser("~"), ".cache", "holdfast-far-drills")
PASSED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TERM", "TZ", "USER")
BORG = 'import sys; from borg.archiver import main; sys.argv[0] = "borg"; main()'
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def say(**fields: Any) -> None:  # Any: JSON
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Limited:
    """So many bytes of a stream."""

    def __init__(self, stream: IO[bytes], count: int) -> None:
        self.stream, self.left = stream, count

    def read(self, count: int = -1) -> bytes:
        raw = self.stream.read(self.left if count < 0 else min(count, self.left))
        self.left -= len(raw)
        return raw


def hold() -> None:
    say(version=list(sys.version_info[:2]), machine=platform.machine(), libc=platform.libc_ver()[0], uid=os.geteuid())
    line = sys.stdin.buffer.readline()
    if not line:
        return
    os.makedirs(CACHE, mode=0o700, exist_ok=True)
    left = clear_abandoned()
    base = tempfile.mkdtemp(dir=CACHE)
    lock = os.open(base, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        unpack(os.path.join(base, "bundle"), json.loads(line)["bytes"])
        serve(base, left)
    except Exception as error:  # noqa: BLE001 - a drill says it in one line
        say(error=f"{type(error).__name__}: {error}")
    finally:
        remove(base)
        os.close(lock)
        with suppress(OSError):
            os.rmdir(CACHE)
        say(removed=not os.path.lexists(base))


def clear_abandoned() -> int:
    """Remove what drills left that were killed; how many."""
    count = 0
    for name in os.listdir(CACHE):
        path = os.path.join(CACHE, name)
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        finally:
            os.close(fd)
        if time.time() - os.stat(path).st_mtime > 5:  # one that is a moment old may not be locked yet
            remove(path)
            count += 1
    return count


def remove(path: str) -> None:
    """The kernel leaves folders without any right in the layers of a shadow, which only root could remove."""
    os.chmod(path, stat.S_IRWXU)
    for at, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(at, name)
            if not os.path.islink(inner):
                os.chmod(inner, stat.S_IRWXU)
    shutil.rmtree(path)


def unpack(bundle: str, count: int) -> None:
    """A virtual environment with Holdfast, and one with Borg, both over this machine's Python."""
    limited: Any = Limited(sys.stdin.buffer, count)  # Any: tarfile needs no more than `read`
    with tarfile.open(fileobj=limited, mode="r|gz") as archive:
        newer: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        archive.extractall(bundle, **newer)
    limited.read()
    home = os.path.dirname(os.path.realpath(sys.executable))
    for one in (bundle, os.path.join(bundle, "borg")):
        if not os.path.isdir(one):
            continue
        os.makedirs(os.path.join(one, "bin"), exist_ok=True)
        os.symlink(os.path.realpath(sys.executable), os.path.join(one, "bin", "python"))
        with open(os.path.join(one, "pyvenv.cfg"), "w", encoding="utf-8") as file:
            file.write(f"home = {home}\ninclude-system-site-packages = false\n")
    borg = os.path.join(bundle, "bin", "borg")
    if os.path.isdir(os.path.join(bundle, "borg")) and not os.path.exists(borg):
        with open(borg, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\nexec {bundle}/borg/bin/python -P -c '{BORG}' \"$@\"\n")
        os.chmod(borg, stat.S_IRWXU)


def serve(base: str, left: int) -> None:
    sys.path.insert(0, os.path.join(base, "bundle", "lib", VERSION, "site-packages"))
    from pathlib import Path

    from holdfast.host.shadow import ShadowPlan, open_shadow

    with open_shadow(ShadowPlan(folder=Path(base) / "world")) as shadow:
        say(base=base, pid=shadow.pid, left=left, hidden=list(shadow.left))
        for line in sys.stdin.buffer:
            say(port=shadow.forward(json.loads(line)["forward"]))


def enter(pid: str) -> None:
    """One line: `words`, `cwd`, `more` variables, `typed` options with their values, `data`: whether input follows."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1)
    given = json.loads(line)
    words = list(given["words"])
    for option, text in given["typed"]:
        reads, writes = os.pipe()
        os.write(writes, text.encode() + b"\n")
        os.close(writes)
        os.set_inheritable(reads, True)
        words += [option, str(reads)]
    if not given["data"]:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
    own = {name: os.environ[name] for name in PASSED if name in os.environ}
    init = os.path.join(os.path.dirname(__file__), "..", "..", "host", "shadow_init.py")
    command = [sys.executable, "-I", "-S", init, "enter", pid, given["cwd"], *words]
    os.execve(sys.executable, command, {**own, **given["more"]})


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold()
    else:
        enter(sys.argv[2])
