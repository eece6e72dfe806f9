"""What `holdfast doctor` says of an agent's backups. Nothing is contacted: states are read."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast.app.findings import Finding, Level
from holdfast.backup.open_engine import describe_engine
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.places.places import Place, check_there, read_places, shared_domains
from holdfast.backup.upkeep.due import find_trouble
from holdfast.errors import HoldfastError
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.settings import NAME

HOUR_MS = 3_600_000


async def examine_backups(folder: Path) -> AsyncIterator[Finding]:
    """Engine, places and their last verified backups; nothing where no agent lives here."""
    if not (folder / NAME).exists():
        return
    try:
        home = load_home(folder)
        places = read_places(home.places_file)
        states = states_of(home).read()
    except HoldfastError:
        return  # a folder with settings and no agent; other checks say what is wrong with it
    if not places and home.vault is None:
        return  # a journal with a name: it has no keys that could open a backup
    if not places:
        yield Finding(
            check="backups",
            level=Level.WARNING,
            text="this agent has no place for backups",
            mend="`holdfast place add NAME FOLDER`",
        )
        return
    yield await _engine(home)
    for place in places:
        yield _place(place, states.get(place.name, PlaceState()), home)
    for names in shared_domains(places).values():
        yield Finding(
            check="backups",
            level=Level.NOTE,
            text=f"{' and '.join(names)} share a failure domain: they can be lost together",
        )


async def _engine(home: AgentHome) -> Finding:
    settings = home.settings.backup
    try:
        shown = await describe_engine(settings)
    except HoldfastError as error:
        accepted = settings.accept_old_borg and error.code == "engine-too-old"
        return Finding(
            check="borg", level=Level.NOTE if accepted else Level.WARNING, text=error.message, mend=error.hint
        )
    return Finding(check="borg", level=Level.OK, text=shown)


def _place(place: Place, state: PlaceState, home: AgentHome) -> Finding:
    now_ms = round(time.time() * 1000)
    trouble = find_trouble(
        place.name,
        state,
        added_ms=place.added_ms,
        now_ms=now_ms,
        stale_after_ms=round(home.settings.backup.stale_after_h * HOUR_MS),
    )
    if trouble is not None:
        return Finding(check="backups", level=Level.WARNING, text=trouble.text, mend=trouble.hint)
    try:
        check_there(place)
        away = ""
    except HoldfastError as error:
        away = f"; away now ({error.code})"
    if not state.verified_ms:
        return Finding(
            check="backups",
            level=Level.NOTE,
            text=f"place {place.name}: none verified yet{away}",
            mend="`holdfast backup now`",
        )
    hours = (now_ms - state.verified_ms) / HOUR_MS
    kind = ", append-only (not immutable)" if place.append_only else ""
    return Finding(
        check="backups",
        level=Level.OK,
        text=f"place {place.name}{kind}: {state.verified} verified {hours:.1f} h ago{away}",
    )
