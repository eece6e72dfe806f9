"""Drills of disks: the disk is full and has space again; the journal's file is damaged."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.drills.backups import get_place
from holdfast.drills.host_loss import describe, measure_effects
from holdfast.drills.run import PYTHON, DrillFailed, DrillRun
from holdfast.drills.work import no_loss

SPARE_BYTES = 48 << 20
FULL_S = 3.0  # how long the disk stays full
PAUSE_S = 0.5  # between steps, so that the disk fills in between
STEPS = ("keyed",) * 12
FLIPS = 8
RESUME_S = 5.0
# Writes zeros until the disk is full.
FILL = """
import os, sys
with open(sys.argv[1], "wb", buffering=0) as file:
    size = 1 << 20
    while size:
        try:
            file.write(bytes(size))
        except OSError:
            size //= 2
"""
# Flips one bit of the journal, in a byte that is in use: file, seed.
FLIP = """
import os, random, sys
rng = random.Random(sys.argv[2])
with open(sys.argv[1], "r+b") as file:
    raw = file.read()
    at = rng.choice([at for at in range(100, len(raw)) if raw[at]])
    file.seek(at); file.write(bytes([raw[at] ^ (1 << rng.randrange(8))]))
print("byte", at)
"""


def disk_full(run: DrillRun) -> None:
    home = run.production.home.folder
    size = sum(mark.size for path, mark in run.production.marks.items() if path.startswith(f"{home}/"))
    filler = home / "drill-filler"
    with run.running_copy(small=[(home, size + SPARE_BYTES)]):
        run.start_worker().wait_serving()
        task = run.submit(STEPS, pause_s=PAUSE_S)
        run.far_end("keyed").wait_effects(1)
        run.event("baseline_taken", f"task {task}: one step done; {describe(run)}")
        run.prepare(*PYTHON, FILL, str(filler))
        run.fault("the disk is full", how="a file takes all of it", target=str(home))
        time.sleep(PAUSE_S)  # a call that had begun may end
        during = run.far_end("keyed").ledger()
        time.sleep(FULL_S)
        after = run.far_end("keyed").ledger()
        shown = run.task(task)
        run.check(
            "not sent while full", after.count == during.count, f"{after.count - during.count} steps in {FULL_S:g} s"
        )
        run.require("waits", shown["state"] != "failed", f"task {task}: {shown['state']}")
        run.event("detected", f"no new step begins; {after.count} of {len(STEPS)} are done")
        run.act("see what is full", must=False)
        run.event("declared", "disk full", actor="drill lead")
        run.step("free some space")
        run.event("recovery_started", "the file is removed", actor="operator")
        freed_ms = time.time_ns() // 1_000_000
        run.prepare("rm", "-f", str(filler))
        run.event("state_restored", "there is space again")
        run.event("journal_reconciled", "nothing was put back")
        run.verify_step(task, after_ms=freed_ms)
        resumed_s = run.events[-1].at_s - next(one.at_s for one in run.events if one.name == "state_restored")
        if resumed_s > RESUME_S:
            run.find("minor", f"it took {resumed_s:.1f} s from free space to the next step; {RESUME_S:g} s is usual")
        ended = run.wait_task(task)
        run.check("L1", ended["state"] == "succeeded", f"task {task}: {ended['state']}")
        checked = run.holdfast("journal", "check", "--home", str(home))
        run.check("I11", checked.code == 0, f"journal check after it: exit {checked.code}")
        measure_effects(run, [task], before=during.count, expected=len(STEPS))
        no_loss(run)
        run.act("see what is left to do", must=False)


def journal_damage(run: DrillRun) -> None:
    """Bits of the journal are flipped: each is found by the check or changes nothing that can be read."""
    place, home = get_place(run), run.production.home.folder
    journal, kept = home / "journal.db", Path("/srv/holdfast-drill-kept.db")
    with run.running_copy(own=True):
        worker = run.start_worker()
        worker.wait_serving()
        task = run.submit(["keyed", "keyed"])
        run.wait_task(task)
        worker.process.terminate()
        worker.process.wait()
        run.good("backup", "now", place.name, "--home", run.values["home"])
        before = run.task(task)
        beside = [f"{journal}{end}" for end in ("-wal", "-shm")]
        run.prepare("cp", "-a", str(journal), str(kept))
        run.event("baseline_taken", f"task {task}; {describe(run)}")
        found = harmless = 0
        for number in range(FLIPS):
            run.prepare("sh", "-c", 'cp -a "$1" "$2" && rm -f "$3" "$4"', "sh", str(kept), str(journal), *beside)
            flipped = run.prepare(*PYTHON, FLIP, str(journal), f"{run.seed}-{number}")
            if number == 0:
                run.fault("the journal is damaged", how=f"one bit, {flipped.out.strip()}", target=str(journal))
            checked = run.act("check the journal", must=False)
            if checked.code != 0:
                found += 1
                if number == 0 or found == 1:
                    run.event("detected", f"{flipped.out.strip()}: {checked.said}")
            elif _reads_same(run, task, before):
                harmless += 1
            else:
                run.check("I11", False, f"{flipped.out.strip()}: not found, and task {task} reads otherwise")
        text = f"{found} found, {harmless} harmless of {FLIPS} flipped bits"
        run.check("I11", found + harmless == FLIPS, text)
        run.event("declared", text, actor="drill lead")
        run.event("recovery_started", f"from place {place.name}; the keys stay", actor="operator")
        done = run.act("restore it from a backup; the keys stay", "--yes", "--json").json()
        run.event("state_restored", f"snapshot {done['restored']['seq']} from {done['restored']['place']}")
        checked = run.holdfast("journal", "check", "--home", run.values["home"])
        run.check("whole again", checked.code == 0, f"journal check: exit {checked.code}")
        run.event("journal_reconciled", f"{done['suspect_tasks']} open tasks in doubt")
        run.start_worker().wait_serving()
        again = run.submit(["keyed"])
        run.verify_step(again)
        run.check("I7", run.task(task)["steps"] == before["steps"], f"the steps of {task} are as they were recorded")
        measure_effects(run, [task, again], before=2, expected=3)


def _reads_same(run: DrillRun, task: str, before: object) -> bool:
    try:
        return run.task(task) == before
    except DrillFailed:
        return False
