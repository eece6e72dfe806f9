"""Drills of keys: they are lost, and paper brings the same id back; they are stolen, and one command ends that."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from holdfast.drills.host_loss import NEW_KEYS, check_identity, measure_effects
from holdfast.drills.run import PYTHON, DrillRun
from holdfast.drills.work import no_loss
from holdfast.errors import NotProven

WATCH_S = 2.0  # how often the thief's worker looks, in the drill
SLACK_S = 30.0  # for calls under way on a loaded machine
# Sets one line in a section of a settings file: file, section, name, value.
SET = """
import sys
path, section, name, value = sys.argv[1:]
lines = [one for one in open(path).read().splitlines() if one.split("=")[0].strip() != name]
lines.insert(lines.index("[" + section + "]") + 1, name + " = " + value)
open(path, "w").write("\\n".join(lines) + "\\n")
"""


def keys_lost(run: DrillRun) -> None:
    key, production = run.get_key(), run.production
    lost = [
        one for one in (production.home.vault, production.home.second, *production.unlock_files()) if one is not None
    ]
    with run.running_copy(gone=lost):
        run.event("baseline_taken", f"id {production.log.id}")
        run.fault("the keys are lost", how=f"{len(lost)} paths with keys are absent", target="vault, second place")
        blind = run.holdfast("identity", "answer", "--home", run.values["home"], "--challenge", secrets.token_hex(16))
        run.require("no keys", blind.code != 0, f"without keys it cannot answer: {blind.said}")
        run.event("detected", blind.said)
        run.event("declared", "keys lost", actor="drill lead")
        run.step("take the recovery sheet, or enough shares, from where it is kept")
        run.event("recovery_started", key.kind, actor="person")
        run.act("recover the identity", "--yes", "--json", *NEW_KEYS, typed=key.typed)
        run.event("identity_unlocked", key.kind)
        run.event("state_restored", "the agent's folder was there")
        run.identity = check_identity(run, incarnation=None)
        run.start_worker().wait_serving()
        run.event("journal_reconciled", "the journal opens with the keys of the escrow")
        _work(run)


def keys_stolen(run: DrillRun) -> None:
    """The thief has the folder, the vault and the second place, and works with them. After one command his signatures
    are refused, and his worker ends."""
    key, home = run.get_key(), run.production.home
    if home.vault is None or home.second is None:
        raise NotProven("the settings name no vault or no second place", hint="see `holdfast explain keys`")
    loot = Path("/srv/holdfast-drill-thief")
    stolen = {name: loot / name for name in ("home", "vault", "second", "arbiter")}
    with run.running_copy():
        run.prepare("mkdir", "-m", "700", "-p", str(loot))
        for name, source in (("home", home.state), ("vault", home.vault), ("second", home.second)):
            run.run(("cp", "-a", str(source), str(stolen[name])))  # beside a live agent a file may go
        settings = stolen["home"] / home.settings_file.relative_to(home.state)
        for name in ("vault", "second", "arbiter"):
            run.prepare(*PYTHON, SET, str(settings), "identity", name, f'"{stolen[name]}"')
        run.prepare(*PYTHON, SET, str(settings), "identity", "watch_s", str(WATCH_S))
        thief = run.start_worker(home=settings.parent)
        thief.wait_serving()
        run.event("baseline_taken", "a thief works with the agent's keys")
        run.fault("the keys are stolen", how="folder, vault and second place are copied", target="all online keys")
        run.step("take the recovery sheet, or enough shares, from where it is kept")
        run.event("recovery_started", key.kind, actor="person")
        run.act("evict the thief", "--yes", "--json", typed=key.typed)
        run.event("identity_unlocked", "new keys are in place")
        evicted = time.monotonic()
        run.event("state_restored", "the agent's folder was there")
        run.event("journal_reconciled", "nothing was put back")
        _check_thief(run, settings.parent)
        while thief.process.poll() is None and time.monotonic() - evicted < WATCH_S + SLACK_S:
            time.sleep(0.05)
        stopped = thief.process.poll() is not None
        text = f"the thief's worker {'ended' if stopped else 'still runs'} after {time.monotonic() - evicted:.1f} s"
        run.check("thief stopped", stopped, f"{text}; it looks every {WATCH_S:g} s")
        run.identity = check_identity(run, incarnation=None, refused=stopped)
        run.start_worker().wait_serving()
        _work(run)


def _work(run: DrillRun) -> None:
    """One step with the new keys."""
    task = run.submit(["keyed"])
    run.verify_step(task)
    measure_effects(run, [task], before=0, expected=1)
    no_loss(run)


def _check_thief(run: DrillRun, home: Path) -> None:
    """What he signs is not believed, and what he publishes is refused."""
    challenge = secrets.token_hex(16)
    answer = run.holdfast("identity", "answer", "--home", str(home), "--challenge", challenge)
    log = ("--log", run.values["log"], "--challenge", challenge, "--answer", answer.out.strip() or "{}")
    judged = run.holdfast("identity", "check-answer", *log)
    run.check("answer refused", judged.code != 0, judged.said if judged.code else "the thief's answer is accepted")
    for words in (("identity", "rotate", "--yes"), ("backup", "now")):
        done = run.holdfast(*words, "--home", str(home))
        run.check(f"thief: {' '.join(words[:2])}", done.code != 0, done.said if done.code else "it succeeded")
