"""Be another user: `as_user.py UID GROUPS WHAT ARGUMENTS...`; started as root.

Everything is imported first: the other user may not be able to read the interpreter's own files.

    signer HOME SOCKET ALLOW        the signer process
    tool PID SOCKET PATHS...        what a tool tries that a model was talked into; prints JSON
    ask SOCKET                      one plain request; prints what came
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.cli.identity import identity
from holdfast.errors import HoldfastError, SignerRefused
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import digest_of, key_bytes
from holdfast.identity.records.signed import Family, message
from holdfast.identity.speaker.signer import LENGTH
from holdfast.identity.speaker.signer_client import SignerClient, SignerRing, SignerSpeaker

PTRACE_ATTACH = 16
NEEDED = (
    "encodings.ascii",
    "encodings.idna",
    "encodings.latin_1",
    "holdfast.layout.agent_home",
    "holdfast.identity.speaker.signer_process",
    "holdfast.app.worker",
    "pwd",
    "getpass",
)
CHALLENGE = "challenge-challenge"


def tried(act: Callable[[], object]) -> str:
    """How it was refused; `done` where it was not."""
    try:
        act()
    except OSError as error:
        return type(error).__name__
    except HoldfastError as error:
        return error.code
    return "done"


def attach(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_ATTACH, pid, None, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def raw(path: str, body: bytes) -> dict[str, Any]:  # Any: JSON of the signer
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(10)
        link.connect(path)
        with contextlib.suppress(BrokenPipeError):  # refused unheard
            link.sendall(LENGTH.pack(len(body)) + body)
        (size,) = LENGTH.unpack(link.recv(LENGTH.size, socket.MSG_WAITALL))
        return json.loads(link.recv(size, socket.MSG_WAITALL))


def tool(pid: int, path: str, *paths: str) -> dict[str, Any]:
    files = {name: tried(lambda name=name: Path(name).read_bytes()) for name in paths}
    folder = {name: tried(lambda name=name: os.listdir(name)) for name in {str(Path(one).parent) for one in paths}}
    process = {
        what: tried(lambda what=what: os.close(os.open(f"/proc/{pid}/{what}", os.O_RDONLY)))
        for what in ("mem", "environ", "maps", "auxv")
    }
    process["ptrace"] = tried(lambda: attach(pid))
    process["kill"] = tried(lambda: os.kill(pid, 0))
    wishes = {
        "bytes": b'{"bytes":"00ff","do":"sign","v":1}',
        "key": b'{"do":"key","v":1}',
        "more": b'{"body":"x","chal":"challenge-challenge","do":"answer","v":1}',
        "family": b'{"chal":"challenge-challenge","do":"answer","family":"kel","v":1}',
        "record": b'{"do":"rotate","v":1}',
        "spaces": b'{"do": "id", "v": 1}',
        "twice": b'{"do":"id","do":"id","v":1}',
    }
    socket_ = {name: raw(path, body)["error"]["code"] for name, body in wishes.items()}
    speaker = SignerSpeaker(SignerClient(Path(path)))
    said = speaker.answer(CHALLENGE)
    (key, signature), port = said.signatures[0], Sodium()
    texts = [CHALLENGE.encode(), said.body, *(message(one, said.body) for one in Family)]
    counts = [port.verifies(key_bytes(key), text, signature) for text in texts]
    ring = SignerRing(SignerClient(Path(path)))
    return {
        "files": files,
        "folders": folder,
        "process": process,
        "socket": socket_,
        "id": speaker.id,
        "counts_as": counts.count(True),
        "families": [one.value for one, counts_ in zip(Family, counts[2:], strict=True) if counts_],
        "ring": len(ring.journal_key(ring.current_journal_key)),
        "host": digest_of(b"x"),
    }


def _allowed(reply: dict[str, Any]) -> None:
    if "error" in reply:
        raise SignerRefused(reply["error"]["code"])


def main() -> None:
    user, groups, what, *rest = sys.argv[1:]
    for name in NEEDED:
        importlib.import_module(name)
    os.setgroups([int(one) for one in groups.split(",") if one])
    os.setgid(int(user))
    os.setuid(int(user))
    os.environ["HOME"] = "/"
    if what == "signer":
        home, path, allow = rest
        args = argparse.Namespace(home=home, socket=path, allow=[allow])
        sys.exit(identity.run_signer(args))
    if what == "ask":
        print(tried(lambda: _allowed(raw(rest[0], b'{"do":"id","v":1}'))))
        return
    print(json.dumps(tool(int(rest[0]), *rest[1:])))


if __name__ == "__main__":
    main()
