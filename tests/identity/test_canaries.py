"""No phrase, passphrase, share or key in arguments, environment, logs, errors or files."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from holdfast.core.clock import SystemEntropy
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase, new_phrase
from holdfast_proofs.canaries.traces import files_below, hits

PROGRAM = Path(__file__).parent / "programs" / "canaries.py"


def planted(phrase: Phrase, passphrase: str) -> list[str]:
    """What must not be found; words in threes, as any copy of the phrase would have them."""
    words = phrase.words
    keys = PaperKeys(phrase)
    threes = [" ".join(words[at : at + 3]) for at in range(22)]
    secret = [keys.recovery(1).seed().hex(), keys.next(1).seed().hex(), keys.escrow().reveal()]
    return [
        phrase.secret.hex(),
        passphrase,
        passphrase[::-1],
        phrase.seed().reveal().hex(),
        *secret,
        *threes,
        *(three.upper() for three in threes),
    ]


def test_no_secret_is_left_anywhere(tmp_path: Path) -> None:
    phrase, passphrase = new_phrase(SystemEntropy()), secrets.token_urlsafe(24)
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir(0o700)
    temporary.mkdir(0o700)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(home)],
        input=json.dumps({"secret": phrase.secret.hex(), "passphrase": passphrase}),
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        cwd=temporary,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = [("stdout", done.stdout.encode()), ("stderr", done.stderr.encode())]
    found = list(files_below(tmp_path))
    assert {"home/log", "home/vault/op.age", "home/place/escrow.age"} <= {name for name, _ in found}
    assert done.stdout.count("error: ") == 10
    assert hits([*said, *found], planted(phrase, passphrase)) == []
    assert not list(temporary.iterdir())


def test_the_search_itself_finds_what_is_there() -> None:
    phrase = new_phrase(SystemEntropy())
    leaked = [("leak", b"word: " + " ".join(phrase.words[4:9]).encode() + b" and so on" * 9)]
    assert hits(leaked, planted(phrase, secrets.token_urlsafe(24)))
