"""Everything that handles secrets, once: `canaries.py FOLDER`, secrets on standard input as JSON.

Prints what a person would see, errors too, and at last what the process shows of itself.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.core.clock import SystemEntropy
from holdfast.errors import HoldfastError
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.vault_keys import move_keys, read_keys
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.pages import sheet_pdf, sheet_text
from holdfast.identity.paper.paper import phrase_sheet, read_secret, share_sheets
from holdfast.identity.paper.phrase import Phrase, read_phrase, repair
from holdfast.identity.paper.shares import combine, split
from holdfast.identity.vault.keyset import KeySet, create_vaults
from holdfast.identity.vault.ring import VaultRing, change, read_escrow, with_place
from holdfast.identity.vault.slots import passphrase_key
from holdfast.identity.vault.vault import open_vault

ENTROPY = SystemEntropy()


def refused(act: Callable[[], object]) -> None:
    try:
        act()
    except HoldfastError as error:
        print(f"error: {error}", f"hint: {error.hint}", repr(error), error.args)
        logging.getLogger("canaries").exception("refused")
    else:
        raise AssertionError("nothing was refused")


def main(root: Path) -> None:
    logging.basicConfig(filename=root / "log", level=logging.DEBUG)
    given = json.load(sys.stdin)
    phrase = Phrase(bytes.fromhex(given["secret"]))
    text, passphrase = " ".join(phrase.words), given["passphrase"]
    load_or_create(root / "keys.json", journal_exists=False, entropy=ENTROPY)
    vault, second = create_vaults(
        root / "vault",
        root / "second",
        escrow=PaperKeys(phrase).escrow().recipient,
        keys=[passphrase_key(passphrase)],
        second_keys=[passphrase_key(passphrase[::-1])],
        entropy=ENTROPY,
        ring=read_keys(root / "keys.json"),
    )
    move_keys(root / "keys.json", vault)
    (root / "place").mkdir(0o700)
    change(vault, lambda escrow: with_place(escrow, root / "place"))
    VaultRing(vault).add_journal_key(ENTROPY)
    keys = KeySet(ops=vault, nexts=second)
    keys.settle(op=keys.stage(ENTROPY).op)
    shares = split(phrase, needed=2, total=3)
    sheet = phrase_sheet(phrase, name="ada", agent_id="hf1" + "q" * 58, number=1, date="2026-11-15", generation=1)
    pages = [sheet_pdf(sheet), sheet_text(sheet).encode()]
    for one in share_sheets(shares, name="ada", agent_id=sheet.agent_id, number=2, date="x", generation=1):
        pages.append(sheet_pdf(one))
    assert combine([" ".join(one.words) for one in shares[:2]]) == phrase
    repair(" ".join([*phrase.words[:3], "zoo", *phrase.words[4:]]), lambda one: one == phrase)

    refused(lambda: open_vault(root / "vault", ask=lambda: passphrase + "?"))
    refused(lambda: read_phrase(text + " more"))
    refused(lambda: read_phrase(text.replace(phrase.words[3], "qqqqq")))
    refused(lambda: repair(text.replace(phrase.words[3], "zoo zoo"), lambda _: False))
    refused(lambda: combine([" ".join(shares[0].words)]))
    refused(lambda: combine([" ".join(shares[0].words[:-1])]))
    refused(lambda: read_secret(text.upper()))
    refused(lambda: read_secret(sheet.code.rpartition(" ")[0]))
    (root / "vault" / "op.age").write_bytes((root / "second" / "next.age").read_bytes())
    refused(lambda: keys.current())
    refused(lambda: passphrase_key(passphrase[:5]))
    print(repr((vault, second, phrase, shares, sheet, keys, read_escrow(vault))))
    print(Path("/proc/self/cmdline").read_bytes(), dict(os.environ))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
