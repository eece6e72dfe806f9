"""What a user of tasks alone never loads."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import holdfast
holdfast.open, holdfast.tool, holdfast.task
keys = ("holdfast.identity", "holdfast.identity.journal_keys")  # of a journal: no signing key is among them
loaded = [name for name in sys.modules if name.startswith(("holdfast.identity", "nacl"))]
print([name for name in loaded if name not in keys and not name.startswith("holdfast.identity.journal_keys.")])
"""


def test_import_holdfast_loads_no_identity() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
