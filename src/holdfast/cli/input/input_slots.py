"""Options for the ways into a vault: a passphrase, a file, a credential. Secrets are never words.

Of a new vault each option makes a slot; of one that is there they say how to open it. Without any
of them a person at the terminal is asked.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.identity.vault.slots import UnlockKey
    from holdfast.identity.vault.vault import Vault

BYTES_MAX = 8 * 1024


def add_slot_options(parser: argparse.ArgumentParser, *, new: bool) -> None:
    """For the vault and for the second place, which has a key of its own."""
    parser.add_argument("--passphrase-fd", metavar="N", help="read the vault's passphrase from this descriptor")
    if new:
        parser.add_argument(
            "--unlock-file",
            metavar="FILE",
            help="open the vault by this file, without a person; made if it is not there",
        )
        parser.add_argument("--credential", metavar="NAME", help="open the vault by this credential of systemd")
    parser.add_argument(
        "--second-passphrase-fd", metavar="N", help="read the passphrase of the second place from this descriptor"
    )
    if new:
        parser.add_argument(
            "--second-unlock-file",
            metavar="FILE",
            help="open the second place by this file; keep it away from the running agent",
        )


def read_line(option: str, word: str) -> str:
    """One line from a descriptor, not shown again."""
    if not word.isascii() or not word.isdigit():
        raise BadInput(f"{option}: {word!r} is not the number of a descriptor")
    if os.isatty(int(word)):
        raise BadInput(f"{option}: a terminal would show it", hint="leave the option out")
    raw = bytearray()
    try:
        # Byte by byte: what follows the line may be for somebody else.
        while len(raw) <= BYTES_MAX and not raw.endswith(b"\n"):
            one = os.read(int(word), 1)
            if not one:
                break
            raw += one
        return raw.decode().removesuffix("\n").removesuffix("\r")
    except (OSError, OverflowError) as error:
        raise BadInput(f"{option} {word} cannot be read: {error}") from error
    except UnicodeDecodeError:
        raise BadInput(f"{option} {word}: not text in UTF-8") from None


def new_slots(args: argparse.Namespace) -> tuple[list[UnlockKey], list[UnlockKey]]:
    """The keys of the slots of a new vault and of its second place."""
    vault = _given("--passphrase-fd", args.passphrase_fd, args.unlock_file, args.credential, what="the vault")
    second = _given(
        "--second-passphrase-fd", args.second_passphrase_fd, args.second_unlock_file, None, what="the second place"
    )
    for one in vault:
        if any(one.kind == other.kind and one.secret == other.secret for other in second):
            raise BadInput(
                "the vault and its second place have the same key",
                hint="whoever steals the one would have the other; take another passphrase or file",
            )
    return vault, second


def open_existing(folder: Path, option: str, fd: str | None, *, what: str) -> Vault:
    """The vault in this folder: by the machine's own slots, a descriptor, or a person."""
    from holdfast.identity.vault.slots import passphrase_key
    from holdfast.identity.vault.vault import open_vault

    if fd is not None:
        return open_vault(folder, given=passphrase_key(read_line(option, fd)))
    return open_vault(folder, ask=_asker(what) if sys.stdin.isatty() else None)


def _given(option: str, fd: str | None, file: str | None, credential: str | None, *, what: str) -> list[UnlockKey]:
    from holdfast.cli.screen.screen import talk
    from holdfast.identity.vault.slots import RISKS, passphrase_key

    keys: list[UnlockKey] = []
    if fd is not None:
        keys.append(passphrase_key(read_line(option, fd)))
    if file is not None:
        keys.append(_unlock_file(Path(os.path.abspath(Path(file).expanduser()))))
    if credential is not None:
        keys.append(_credential(credential))
    if not keys:
        keys.append(passphrase_key(_asked_twice(what, option)))
    for key in keys:
        if key.kind != "passphrase":
            talk(f"risk: {what}: {RISKS[key.kind]}")
    return keys


def _unlock_file(path: Path) -> UnlockKey:
    from holdfast.core.clock import SystemEntropy
    from holdfast.host.private_files import check_place, create_durably, ensure_private_folder
    from holdfast.identity.vault.mounted import read_mounted
    from holdfast.identity.vault.slots import UNLOCK_FILE_BYTES_MAX, file_key, new_unlock_text

    check_place(path, allow_network_fs=True)
    if not os.path.lexists(path):
        if not path.parent.is_dir():
            ensure_private_folder(path.parent)
        create_durably(path, new_unlock_text(SystemEntropy()))
    return file_key(path, read_mounted(path, bytes_max=UNLOCK_FILE_BYTES_MAX))


def _credential(name: str) -> UnlockKey:
    from holdfast.identity.vault.mounted import read_mounted
    from holdfast.identity.vault.slots import UNLOCK_FILE_BYTES_MAX, credential_key

    folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not folder:
        raise BadInput("--credential: systemd has given this process no credentials")
    try:
        raw = read_mounted(Path(folder) / Path(name).name, bytes_max=UNLOCK_FILE_BYTES_MAX, group_may_read=True)
    except FileNotFoundError:
        raise BadInput(f"--credential: there is no credential {name!r}") from None
    return credential_key(name, raw)


def _asked_twice(what: str, option: str) -> str:
    if not sys.stdin.isatty():
        raise BadInput(f"nobody is there to type a passphrase for {what}", hint=f"give {option} N")
    from getpass import getpass

    first = getpass(f"new passphrase for {what} (not shown): ", stream=sys.stderr)
    if getpass("once more: ", stream=sys.stderr) != first:
        raise BadInput("the two are not the same: nothing was changed", hint="run it again")
    return first


def _asker(what: str):
    from getpass import getpass

    return lambda: getpass(f"passphrase of {what} (not shown): ", stream=sys.stderr)
