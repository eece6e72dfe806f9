"""Options for opening a vault: a passphrase, a file, a credential. No option takes a secret itself.

For a new vault, each option makes a way to open it; for an existing one, it says how to open it.
Without any of them, a person at the terminal is asked.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.command import add_options
from holdfast.cli.input.terminal import ask_hidden, ask_twice, descriptor
from holdfast.cli.screen.screen import talk
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.identity.vault.slots import UnlockKey
    from holdfast.identity.vault.vault import Vault

BYTES_MAX = 8 * 1024


def add_slot_options(parser: argparse.ArgumentParser, *, new: bool) -> None:
    """For the vault and for the second place, which has its own key."""
    add_options(parser, "--passphrase-fd")
    if new:
        parser.add_argument(
            "--unlock-file",
            metavar="FILE",
            help="unlock the vault with this file instead of a passphrase; Holdfast makes the file if it is missing",
        )
        parser.add_argument("--credential", metavar="NAME", help="open the vault with this systemd credential")
    parser.add_argument(
        "--second-passphrase-fd", metavar="N", help="read the passphrase of the second place from this descriptor"
    )
    if new:
        parser.add_argument(
            "--second-unlock-file",
            metavar="FILE",
            help="open the second place with this file; keep the file where the running agent cannot read it",
        )


def read_line(option: str, word: str) -> str:
    """One line from a descriptor, not shown again."""
    number, raw = descriptor(option, word), bytearray()
    try:
        # Byte by byte: what follows the line may be for another reader.
        while len(raw) <= BYTES_MAX and not raw.endswith(b"\n"):
            one = os.read(number, 1)
            if not one:
                break
            raw += one
        return raw.decode().removesuffix("\n").removesuffix("\r")
    except (OSError, OverflowError) as error:
        raise BadInput(f"{option} {word} cannot be read: {error}") from error
    except UnicodeDecodeError:
        raise BadInput(f"{option} {word}: not UTF-8 text") from None


def new_slots(args: argparse.Namespace) -> tuple[list[UnlockKey], list[UnlockKey]]:
    """The keys that open a new vault and its second place."""
    vault = given_keys("--passphrase-fd", args.passphrase_fd, args.unlock_file, args.credential, what="the vault")

    def differ(other: UnlockKey) -> None:
        if any(one.kind == other.kind and one.secret == other.secret for one in vault):
            raise BadInput(
                "the vault and its second place have the same passphrase or unlock file",
                hint="a thief who opens one could open both: use different ones",
            )

    option, fd, file = "--second-passphrase-fd", args.second_passphrase_fd, args.second_unlock_file
    second = given_keys(option, fd, file, None, what="the second place", check=differ)
    return vault, second


def open_existing(folder: Path, option: str, fd: str | None, *, what: str) -> Vault:
    """Open the vault in this folder: without a person if possible, else with the passphrase."""
    from holdfast.identity.vault.slots import passphrase_key
    from holdfast.identity.vault.vault import open_vault

    if fd is not None:
        return open_vault(folder, given=passphrase_key(read_line(option, fd)))
    ask = partial(ask_hidden, f"passphrase of {what}", for_what="it", hint=option) if sys.stdin.isatty() else None
    return open_vault(folder, ask=ask)


def given_keys(
    option: str,
    fd: str | None,
    file: str | None,
    credential: str | None,
    *,
    what: str,
    check: Callable[[UnlockKey], None] = lambda _: None,
) -> list[UnlockKey]:
    """The keys that these options name; without any, a passphrase that a person types. The check raises BadInput for
    one that may not be used; a person may then type another."""
    from holdfast.identity.vault.slots import RISKS, passphrase_key

    keys: list[UnlockKey] = []
    if fd is not None:
        keys.append(passphrase_key(read_line(option, fd)))
    if file is not None:
        keys.append(_unlock_file(Path(os.path.abspath(Path(file).expanduser()))))
    if credential is not None:
        keys.append(_credential(credential))
    if not keys:
        prompt, for_what = f"new passphrase for {what}", f"a passphrase for {what}"
        asked = ask_twice(
            prompt, for_what=for_what, hint=f"give {option} N", check=lambda text: check(passphrase_key(text))
        )
        keys.append(passphrase_key(asked))
    for key in keys:
        check(key)
        if key.kind != "passphrase":
            talk(f"risk: {what}: {RISKS[key.kind]}")
    return keys


def _unlock_file(path: Path) -> UnlockKey:
    from holdfast.core.clock import SystemEntropy
    from holdfast.host.private_files import check_place, create_durably, ensure_private_folder
    from holdfast.identity.vault.slots import UNLOCK_FILE_BYTES_MAX, file_key, new_unlock_text, read_mounted

    check_place(path, allow_network_fs=True)
    if not os.path.lexists(path):
        if not path.parent.is_dir():
            ensure_private_folder(path.parent)
        create_durably(path, new_unlock_text(SystemEntropy()))
    return file_key(path, read_mounted(path, bytes_max=UNLOCK_FILE_BYTES_MAX))


def _credential(name: str) -> UnlockKey:
    from holdfast.identity.vault.slots import UNLOCK_FILE_BYTES_MAX, credential_key, read_mounted

    folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not folder:
        raise BadInput("--credential: systemd gave this process no credentials")
    try:
        raw = read_mounted(Path(folder) / Path(name).name, bytes_max=UNLOCK_FILE_BYTES_MAX, group_may_read=True)
    except FileNotFoundError:
        raise BadInput(f"--credential: there is no credential {name!r}") from None
    return credential_key(name, raw)
