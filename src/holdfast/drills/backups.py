"""Drills of backups: a place is gone, a place was changed, an older state comes back, and the daily test restore."""

from __future__ import annotations

from pathlib import Path

from holdfast.backup.places.places import Place
from holdfast.drills.host_loss import compare_state, describe, measure_effects, measure_loss, restored_line
from holdfast.drills.run import PYTHON, DrillRun, Json
from holdfast.errors import NotProven
from holdfast.surfaces import report as out

STEPS = ("keyed", "queryable", "unrepeatable")
RESCUE = Path("/srv/holdfast-drill-rescue-key")
# Changes one byte in the middle of the largest file of a repository; it is told no more than the folder.
FLIP = """
import os, random, sys
every = [os.path.join(at, name) for at, _, names in os.walk(sys.argv[1] + "/data") for name in names]
path = max(every, key=os.path.getsize)
with open(path, "r+b") as file:
    at = random.Random(int(sys.argv[2])).randrange(64, os.path.getsize(path))
    file.seek(at); old = file.read(1); file.seek(at); file.write(bytes([old[0] ^ 1]))
print(path, at)
"""


def get_place(run: DrillRun) -> Place:
    if run.place is None:
        raise NotProven(
            "no place is a folder that this machine can reach now", hint="mount it, then run the drill again"
        )
    return run.place


def get_other(run: DrillRun) -> Place:
    """A second place that a shadow can reach."""
    place = get_place(run)
    other = next((one for one in run.production.folder_places if one is not place), None)
    if other is None:
        raise NotProven(
            "no second place is a folder that this machine can reach now", hint="mount it, then run it again"
        )
    run.values["other_name"] = other.name
    return other


def results(done: Json) -> dict[str, Json]:
    return {one["place"]: one for one in done["places"]}


def place_lost(run: DrillRun) -> None:
    place, other = get_place(run), get_other(run)
    with run.running_copy(gone=[place.root]):
        run.event("baseline_taken", f"places {place.name} and {other.name}")
        run.fault(f"place {place.name} is lost", how="its folder is absent", target=place.name)
        made = run.holdfast("backup", "now", "--json", "--home", run.values["home"])
        said = results(made.json()).get(place.name, {})
        found = bool(said.get("error"))
        run.check("alarm", found, f"backup now: {place.name}: {said.get('error') or 'no error'}")
        if found:
            run.event("detected", f"{said['error']}: {said['message']}")
        run.event("declared", f"{place.name} lost", actor="drill lead")
        run.event("recovery_started", f"from {other.name}")
        listed = run.act("see which place is gone", "--json", must=False, why="its JSON is read").json()
        error = {one["place"]: one["error"] for one in listed["places"]}.get(place.name, "")
        run.check("named", bool(error), f"backup list: {place.name}: {error or 'no error'}")
        verified(run, other, title="test the other one", restores=True)
        run.act("stop using the lost place", "--yes", must=False)


def verified(run: DrillRun, place: Place, *, title: str, restores: bool) -> None:
    """Restore the newest snapshot of this place for a test, and compare every byte with what the agent signed."""
    done = run.act(title, "--json", must=False, why="its JSON is read")
    said = results(done.json()).get(place.name, {})
    good = done.code == 0 and bool(said.get("verified"))
    text = f"{said.get('archive', '')}: {'every byte as signed' if good else said.get('message') or 'not verified'}"
    if restores:
        run.event("state_restored", text)
        run.event("journal_reconciled", "the journal in the snapshot was checked")
        run.require("restores", good, f"place {place.name}: {text}")
        run.event("first_verified_step", f"place {place.name}: {text}")
        run.backup = out.BackupResult(
            places=tuple(one.name for one in run.production.places),
            archive=str(said.get("archive", "")),
            age_s=None,
            check_rc=done.code,
            files_restored=None,
            bytes=None,
            seconds=float(said.get("verify_s", 0.0)),
            key_used="vault",
        )
    else:
        run.check("found", not good, f"place {place.name}: {text}")
        if not good:
            run.event("detected", text)


def backup_tampered(run: DrillRun) -> None:
    """One byte of a repository is changed; then a repository is put back to an older day."""
    place, other = get_place(run), get_other(run)
    home, kept = run.values["home"], f"{place.own}.before"
    with run.running_copy():
        run.event("baseline_taken", f"places {place.name} and {other.name}")
        run.prepare("cp", "-a", str(place.own), kept)
        flipped = run.run((*PYTHON, FLIP, str(place.repository), str(run.seed)))
        if flipped.code:
            raise NotProven(
                f"the repository of {place.name} has no data to change", hint="run `holdfast backup now` first"
            )
        run.fault("a byte of a backup is changed", how=flipped.out.strip(), target=place.name)
        verified(run, place, title="test the place", restores=False)
        run.prepare("rm", "-rf", str(place.own))
        run.prepare("cp", "-a", kept, str(place.own))
        run.good("backup", "now", "--no-verify", "--home", home)
        run.prepare("rm", "-rf", str(place.own))
        run.prepare("mv", kept, str(place.own))
        run.event("fault_again", f"the repository of {place.name} is put back to an older day", actor="drill")
        listed = run.act("look for a rollback", "--json", must=False, why="its JSON is read").json()
        said = {one["place"]: one for one in listed["places"]}[place.name]
        text = "; ".join(said["findings"]) or said["error"] or ("it is behind" if said["behind"] else "")
        run.check("rollback found", bool(text or said["missing"]), text or "nothing is said of the rollback")
        run.event("declared", f"{place.name} is not trusted", actor="drill lead")
        run.event("recovery_started", f"from {other.name}")
        verified(run, other, title="test the other one", restores=True)
        run.act("stop using the bad place", "--yes", must=False)


def old_backup(run: DrillRun) -> None:
    """Effects were made after the snapshot that is restored: none is made again, each is adopted or parked."""
    place, home = get_place(run), run.production.home
    with run.running_copy() as machine:
        task = run.submit(STEPS)
        run.good("backup", "now", place.name, "--home", run.values["home"])
        run.start_worker().wait_serving()
        run.wait_task(task)
        before = run.effects_of(task)
        run.event("baseline_taken", f"{len(before)} effects that the snapshot does not know of; {describe(run)}")
        run.fault(
            "an older state comes back", how="the folder is lost, an older snapshot is restored", target="journal"
        )
        machine.kill()
    run.event("recovery_started", f"from place {place.name}; the keys stay", actor="operator")
    with run.machine(gone=[home.state]):
        done = run.act("restore the snapshot; the keys stay", "--yes", "--json").json()
        run.event("state_restored", f"snapshot {done['restored']['seq']} from {done['restored']['place']}")
        run.event("journal_reconciled", f"{done['suspect_tasks']} open tasks in doubt")
        run.check("in doubt", int(done["suspect_tasks"]) >= 1, f"{done['suspect_tasks']} open tasks in doubt")
        run.start_worker().wait_serving()
        shown = run.wait_task(task, seconds=120)
        adopted = tuple(one["ordinal"] for one in shown["steps"] if one["state"] == "succeeded")
        parked = tuple(one["ordinal"] for one in shown["steps"] if one["state"] == "parked")
        run.event(
            "first_verified_step", f"adopted {', '.join(adopted) or 'nothing'}; parked {', '.join(parked) or 'nothing'}"
        )
        settled = set(adopted) | set(parked)
        run.check("I10", len(settled) == len(STEPS), f"{len(settled)} of {len(STEPS)} steps are adopted or parked")
        run.check("unrepeatable is parked", len(parked) == 1, f"parked: {', '.join(parked) or 'nothing'}")
        measure_effects(run, [task], before=len(before), expected=len(STEPS), parked=parked)
        run.act("see what waits for a person", must=False)


def test_restore(run: DrillRun) -> None:
    """The newest snapshot is restored into a new folder, on the path of a recovery, and compared with production: with
    a rescue key on a fresh root, else with the vault of this machine."""
    place, to, key, home = get_place(run), Path(run.values["to"]), run.key, run.production.home
    if key is None:
        run.production.check_opens()
    if key is None or key.file is None:
        if run.on:
            raise NotProven("the rescue key was not given", hint="on another machine, give --rescue-key FILE")
        machine, options = run.machine(gone=(home.state,)), ("--keep-keys", "--vault", run.values["vault"])
    else:
        machine = run.fresh_machine(place=place, copies=((key.file, RESCUE),))
        options = ("--rescue-key", str(RESCUE))
    with machine:
        run.event("baseline_taken", describe(run))
        run.fault("the agent's folder is lost", how="it is absent", target="the agent's folder")
        run.event("recovery_started", f"from place {place.name}")
        restored: Json = run.act("restore into a new folder", "--json", *options).json()
        run.event("state_restored", restored_line(restored))
        run.event("journal_reconciled", "the journal in the snapshot was checked")
        run.state = compare_state(run, run.hashes(str(to)), snapshot_s=int(restored["at"]))
        run.event("first_verified_step", f"{run.state.files_compared} files compared with production")
    measure_loss(run, restored, tasks=None)
