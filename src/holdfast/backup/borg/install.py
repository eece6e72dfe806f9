"""Building Borg beside this Python, from its locked source: the same script that sets up a clone.

Borg has no wheels, and no package of ours compiles inside `pip install`; so a person asks for it once, with
`holdfast doctor --install-borg`. It goes into a venv inside our own, and its program beside our Python, which is where
`find_program` looks first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast.errors import EngineMissing

HERE = Path(__file__).parent


def install_program() -> Path:
    """Raises EngineMissing."""
    if sys.prefix == sys.base_prefix:
        raise EngineMissing(
            "this Python is not in a virtual environment: Borg is not built into the system's Python",
            hint="install Holdfast with pipx or into a venv; or `sudo apt-get install borgbackup` (Debian 13)",
        )
    # In a wheel the locks are beside this file, in a clone with all the others.
    locks = HERE if (HERE / "borg.lock").is_file() else HERE.parents[3] / "requirements"
    done = subprocess.run(["bash", HERE / "build.sh", sys.prefix, locks], stdout=sys.stderr)
    if done.returncode:
        raise EngineMissing("Borg could not be built", hint="the messages above say what is missing")
    return Path(sys.prefix) / "bin" / "borg"
