"""Who runs this process: what a decision is recorded under where its maker gives no name."""

from __future__ import annotations

import os
import pwd
import socket


def user_at_host() -> str:
    """`ada@laptop`; the number of a user that has no name."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
