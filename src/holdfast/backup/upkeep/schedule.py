"""The texts by which a system runs backups: a systemd timer of the user, or a line for cron.

The timer calls `holdfast backup due`, which decides by itself which places are due; so it looks
more often than backups are made, and what was missed while the machine was off is caught up soon
after it is on again.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.host.private_files import ensure_private_folder, write_atomically

LOOK_MIN = 10  # minutes between two looks
EVERY_S_MIN = 300.0
EVERY_S_MAX = 31 * 86_400.0
_UNITS = {"m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """`unit` is the name of the files without their ends."""

    unit: str
    service: str
    timer: str
    cron: str


def parse_every(text: str) -> float:
    """Seconds of `30m`, `1h`, `1d`. Raises BadInput."""
    try:
        seconds = float(text[:-1]) * _UNITS[text[-1:]]
    except (ValueError, KeyError):
        raise BadInput(f"{text!r} is no interval", hint="for example 30m, 1h or 1d") from None
    if not EVERY_S_MIN <= seconds <= EVERY_S_MAX:
        raise BadInput(f"{text!r} is too short or too long", hint="5m at least, 31d at most")
    return seconds


def make_schedule(home: Path, *, agent: str, every: str) -> Schedule:
    """For the agent in this folder, run by the Python that runs this."""
    parse_every(every)
    words = [sys.executable, "-m", "holdfast", "backup", "due", "--every", every, "--home"]
    command = " ".join([*map(shlex.quote, words), shlex.quote(str(home))])
    unit = f"holdfast-backup-{_unit_name(agent)}"
    service = (
        f"[Unit]\nDescription=Backups of the agent {agent}\n\n"
        f"[Service]\nType=oneshot\nExecStart={_escaped([*words, str(home)])}\n"
        "Nice=10\nIOSchedulingClass=idle\nUMask=0077\n"
    )
    timer = (
        f"[Unit]\nDescription=Look which backups of the agent {agent} are due\n\n"
        f"[Timer]\nOnCalendar=*:0/{LOOK_MIN}\nRandomizedDelaySec=60\nPersistent=true\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )
    cron = f"*/{LOOK_MIN} * * * * {command}".replace("%", r"\%")
    return Schedule(unit=unit, service=service, timer=timer, cron=cron)


def units_folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "systemd" / "user"


def install(schedule: Schedule, folder: Path) -> tuple[Path, Path]:
    """Write both files; nothing is started. Safe to repeat."""
    if not folder.is_dir():
        ensure_private_folder(folder)
    service, timer = folder / f"{schedule.unit}.service", folder / f"{schedule.unit}.timer"
    write_atomically(service, schedule.service.encode())
    write_atomically(timer, schedule.timer.encode())
    return service, timer


def _unit_name(agent: str) -> str:
    safe = "".join(one if one.isascii() and one.isalnum() else "-" for one in agent)
    return safe.strip("-").lower() or "agent"


def _escaped(words: list[str]) -> str:
    """As systemd reads a command line: quotes, and what it would replace is doubled."""
    doubled = str.maketrans({"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$"})
    return " ".join(f'"{word.translate(doubled)}"' for word in words)
