"""`holdfast recover --rescue-key FILE --to FOLDER`: a copy of the agent to look at, which can do nothing.

The files are as they were backed up, but for what would let the copy act, or find the agent that is alive:

    holdfast.toml   names the agent and nothing else: no vault, witness, arbiter, signer, database or notice command of
                    the original, which may be on this very machine; that one is kept as holdfast.toml.original
    keys.json       opens the journal for reading (core/reading_ring.py), and marks the folder as a rescued copy

Both are there before the folder gets its name, so no moment shows it without them.
"""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.app.binder import KEYS
from holdfast.host.private_files import write_atomically
from holdfast.identity.vault.rescue import Rescue, rescued_key_file
from holdfast.layout.agent_home import home_in
from holdfast.layout.settings import NAME

ORIGINAL = f"{NAME}.original"


def make_harmless(folder: Path, rescue: Rescue, *, name: str) -> None:
    """Make a restored folder a copy that is only read, before it takes its place."""
    home = home_in(folder)
    adopted = "" if home == folder else '\n[adopted]\nfolder = ".."\n'
    write_atomically(home / ORIGINAL, (home / NAME).read_bytes())
    write_atomically(home / NAME, f"agent = {json.dumps(name)}\n{adopted}".encode())
    write_atomically(home / KEYS, rescued_key_file(rescue.keys))
