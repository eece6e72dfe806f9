"""A standing copy: production's newest snapshot, restored in a shadow beside it and brought forward with each new one.

    ~/.cache/holdfast/stands/NAME/stand.json    which snapshot it has, from where, and by which rescue key
    ~/.cache/holdfast/stands/NAME/world         the files of its shadow; the copy is at COPY in it

Between two commands there is no process and no mount, so a reboot ends nothing. A rescue key restores it: the copy can
be read, and neither signs nor sends. To bring it forward, the new snapshot is restored beside it and then takes its
name: a kill leaves the older copy or the newer one, and what is beside it is removed by the next command.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
from collections.abc import Generator
from pathlib import Path

import msgspec

from holdfast.backup.places.places import read_places
from holdfast.core.clock import SystemClock
from holdfast.drills.host_loss import compare_state, describe, host_loss, measure_loss, restored_line
from holdfast.drills.own_folder import clear
from holdfast.drills.production import Production
from holdfast.drills.run import COMMAND_S_MAX, HOLDFAST, DrillKey, DrillRun
from holdfast.drills.standing.job import FILE, Stand, find_stand, stands_folder
from holdfast.errors import NotNow, NotProven
from holdfast.host.private_files import locked_now, write_atomically
from holdfast.host.shadow import Shadow, ShadowPlan, open_shadow
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.layout.agent_home import AgentHome

LOCK = ".lock"
COPY = "/srv/holdfast-standing-copy"
SWAP = 'rm -rf "$1.old" && if [ -e "$1" ]; then mv "$1" "$1.old"; fi && mv "$1.new" "$1" && rm -rf "$1.old"'


def forward(home: AgentHome, *, rescue_key: Path, place: str) -> Stand:
    """Make the standing copy, or bring it to the newest snapshot. Raises NotProven."""
    log, places = read_own_log(home.folder, Sodium()), read_places(home.places_file)
    gone = Production(home=home, log=log, places=places, journal=None, marks={}, granted=0).lost_with_host()
    if any(one == rescue_key or one in rescue_key.parents for one in gone):
        raise NotProven(
            f"the rescue key {rescue_key} is lost together with the machine", hint="keep it in another folder"
        )
    if (old := find_stand(home.name)) is not None and old.id != log.id:
        raise NotProven(
            f"{stands_folder() / home.name} has the copy of another agent of this name, in {old.home}",
            hint=f"`holdfast drill stand end --home {shlex.quote(old.home)}` removes it",
        )
    with _own(home.name) as folder, open_shadow(ShadowPlan(folder=folder / "world", gone=gone)) as shadow:
        _run(shadow, "rm", "-rf", f"{COPY}.new", f"{COPY}.old")
        words = ("recover", "--place", place, "--home", str(home.state), "--to", f"{COPY}.new", "--json")
        said = _run(shadow, *HOLDFAST, *words, "--rescue-key", str(rescue_key))
        restored = json.loads(said)
        _run(shadow, "sh", "-c", SWAP, "sh", COPY)
        made = Stand(
            agent=home.name,
            id=log.id,
            home=str(home.folder),
            place=place,
            rescue_key=str(rescue_key),
            archive=restored["archive"],
            seq=int(restored["seq"]),
            at=int(restored["at"]),
            files=int(restored["files"]),
            journal_sequence=restored["journal_sequence"],
            incarnation=restored["incarnation"],
            forwarded_ms=SystemClock().wall_ms(),
        )
        write_atomically(folder / FILE, msgspec.json.encode(made))
    return made


def end_stand(name: str) -> bool:
    """Remove the copy; whether there was one."""
    folder = stands_folder() / name
    if not folder.is_dir():
        return False
    with _own(name):
        (folder / FILE).unlink(missing_ok=True)
        clear(folder)
    with contextlib.suppress(OSError):
        (folder / LOCK).unlink(missing_ok=True)
        folder.rmdir()
    return True


@contextlib.contextmanager
def _own(name: str) -> Generator[Path]:
    folder = stands_folder() / name
    with locked_now(folder / LOCK) as mine:
        if not mine:
            raise NotNow(f"the standing copy of {name} is in use", hint="try again in a minute")
        yield folder


def _run(shadow: Shadow, *words: str) -> str:
    process = shadow.start(words)
    try:
        told, error = process.communicate(timeout=COMMAND_S_MAX)
    except subprocess.TimeoutExpired:
        raise NotProven(f"{words[0]} took longer than {COMMAND_S_MAX:g} s") from None
    if process.returncode:
        lines = error.decode(errors="replace").strip().splitlines()
        text = next((one for one in lines if one.startswith(("error: ", '{"error"'))), lines[-1] if lines else "")
        raise NotProven(f"the standing copy was not brought forward: {text}", hint="see `holdfast explain drills`")
    return told.decode()


def lose_host(run: DrillRun) -> None:
    """host-loss, and then a copy that stays."""
    host_loss(run)
    stand = _forward(run)
    run.check("standing copy", True, f"snapshot {stand.seq} from {stand.place}, in {stands_folder() / stand.agent}")


def restore(run: DrillRun) -> None:
    """test-restore, on the copy that stands: it is brought to the newest snapshot and compared with production."""
    run.event("baseline_taken", describe(run))
    run.fault("the agent's folder is lost", how="it is absent in the standing copy", target="the agent's folder")
    run.event("recovery_started", "the standing copy is brought forward")
    stand = _forward(run)
    run.fresh = True
    run.event("state_restored", restored_line(msgspec.to_builtins(stand)))
    run.event("journal_reconciled", "the journal in the snapshot was checked")
    folder = stands_folder() / stand.agent / "world"
    with open_shadow(ShadowPlan(folder=folder, gone=run.production.lost_with_host())) as shadow:
        run.shadow = shadow
        run.state = compare_state(run, run.hashes(COPY), snapshot_s=stand.at)
        run.event("first_verified_step", f"{run.state.files_compared} files compared with production")
    snapshot = {"journal_sequence": stand.journal_sequence, "incarnation": stand.incarnation or 0, "at": stand.at}
    measure_loss(run, snapshot, tasks=None)


def _forward(run: DrillRun) -> Stand:
    old = find_stand(run.production.home.name)
    key = run.rescue_key or (Path(old.rescue_key) if old is not None else None)
    if key is None:
        raise NotProven("the rescue key was not given", hint="a standing copy needs --rescue-key FILE")
    run.key = run.key or DrillKey(kind="rescue key", file=key)
    if run.place is None:
        raise NotProven("no place is a folder that this machine can reach now", hint="mount it, then run it again")
    return forward(run.production.home, rescue_key=key, place=run.place.address)
