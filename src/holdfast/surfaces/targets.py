"""Targets of an agent: how long a recovery may take, how much may be lost, and who said so.

`targets.jsonl` in the agent's folder has one line for each time that a person set them; the last one counts, and the
others say what held before. Where there is none, the defaults count, and are shown as such.
"""

from __future__ import annotations

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.core.surfaces import Targets
from holdfast.errors import BadInput, BadSettings
from holdfast.host.line_file import append_line, read_lines
from holdfast.layout.agent_home import AgentHome

FILE_BYTES_MAX = 1 << 20
SECONDS_MAX = 10 * 366 * 86_400
NAME_CHARS_MAX = 200
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parse_seconds(text: str, *, what: str) -> int:
    """Whole seconds of `300`, `5m`, `1h`, `1d`. Raises BadInput."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    if not (number.isascii() and number.isdigit()) or not int(number) * unit <= SECONDS_MAX:
        raise BadInput(
            f"{what}: {text!r} is not a time", hint="give seconds, or for example 5m, 1h, 1d; at most 10 years"
        )
    return int(number) * unit


def read_targets(home: AgentHome) -> Targets:
    """Those that hold now. Raises BadSettings where the file is malformed: a target is never guessed."""
    lines = read_lines(home.targets_file, bytes_max=FILE_BYTES_MAX)
    try:
        every = [decode_json(line, Targets) for line in lines]
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        hint = "put the file back from a backup, or remove it and set the targets again"
        raise BadSettings(f"{home.targets_file}: {error}", hint=hint) from None
    return every[-1] if every else Targets()


def set_targets(home: AgentHome, targets: Targets) -> None:
    """Durable on return. Raises BadInput for targets that contradict themselves."""
    if not targets.by or len(targets.by) > NAME_CHARS_MAX or not targets.by.isprintable():
        raise BadInput(
            "--by: give the name of the person who sets the targets", hint=f"at most {NAME_CHARS_MAX} characters"
        )
    if targets.rto_s < 1 or targets.restart_s == 0:
        raise BadInput("--rto and --restart must be at least 1 s")
    if targets.mtd_s is not None and targets.mtd_s < targets.rto_s:
        raise BadInput("--mtd is shorter than --rto: a recovery in time would come too late")
    append_line(home.targets_file, msgspec.json.encode(targets), bytes_max=FILE_BYTES_MAX)
