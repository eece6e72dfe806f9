"""host-loss: the machine dies in the middle of a step; the agent is restored on another one from paper and one place.

Two machines, one after the other, that share what is off the machine: the places. On the first one a copy of the agent
works, and does an effect that no backup knows of; then every process of it dies at once. On the second one nothing of
the agent is left: folder, journal, vault, second place, arbiter, witness on the same disk, keys. The snapshot that is
restored is production's own newest one. The caller sends its request again, as callers do; the far end must count the
effect once.
"""

from __future__ import annotations

import secrets
import shlex
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from holdfast.core.clock import iso
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.ledger import Done as Effect
from holdfast.downstream.ledger import Page
from holdfast.drills.production import Covered, compare_files
from holdfast.drills.run import WAIT_S, DrillFailed, DrillRun, Json
from holdfast.errors import NotProven
from holdfast.surfaces import report as out
from holdfast.surfaces.procedure import own_steps

UNLOCK, UNLOCK_SECOND = "/run/holdfast-drill-unlock", "/run/holdfast-drill-unlock-second"
NEW_KEYS = ("--unlock-file", UNLOCK, "--second-unlock-file", UNLOCK_SECOND)
REQUEST = "drill-request"
CHECK_EVERY_S = 0.5
OWN_CHECK_S_MAX = 600.0  # one try of `[drills] check`


def host_loss(run: DrillRun) -> None:
    place = run.place
    if place is None:
        raise NotProven(
            "no place is a folder that this machine can reach now", hint="mount it, or add one: `holdfast place add`"
        )
    key = run.get_key()
    if run.production.is_beside(place.root):
        run.find("major", f"place {place.name} is on the disk of the agent's folder: a real loss takes both")
    first = work_and_die(run)
    before = run.effects_of(first)
    run.event(
        "recovery_started", f"on {run.on or 'a fresh root'}, from place {place.name} and {key.kind}", actor="person"
    )
    run.step("take the recovery sheet, or enough shares, from where it is kept")
    with run.fresh_machine(place=place):
        _check_nothing_left(run)
        restored = restore(run, key_options=NEW_KEYS, typed=key.typed)
        after(run, restored, task=first, before=len(before))


def after(run: DrillRun, restored: Json, *, task: str, before: int) -> None:
    """From restored files to a verified step; then everything is compared."""
    works = run.production.journal is not None
    heartbeat = _hash_heartbeat(run)  # the worker writes into it which tasks are open
    if works:
        _work_again(run, task=task, before=before)
    if run.production.home.settings.drills.check:
        _own_check(run)
    run.identity = check_identity(run, incarnation=restored["incarnation"])
    snapshot = restored["restored"]
    restored_files = run.hashes(run.values["home"]) | heartbeat
    run.state = compare_state(run, restored_files, snapshot_s=int(snapshot["at"]))
    tasks = None
    if works:
        listed = run.good("task", "list", "--limit", "100000", "--json", "--home", run.values["home"]).json()["tasks"]
        tasks = {one["task_id"] for one in listed}
        run.act("see what waits for a person", "--json", must=False, why="its JSON is read")
    elif not run.production.home.settings.drills.check:
        run.deviations.append("no step was done: the agent has no journal, and [drills] has no `check`")
        run.event("first_verified_step", "it answered a challenge, and its files were compared")
    measure_loss(run, snapshot, tasks=tasks)
    run.act("see which secrets to rotate", must=False)


def _hash_heartbeat(run: DrillRun) -> dict[str, str]:
    name = str(run.production.home.heartbeat_file.relative_to(run.production.home.state))
    done = run.run(("sha256sum", str(Path(run.values["home"]) / name)))
    return {} if done.code else {name: done.out.split()[0]}


def _work_again(run: DrillRun, *, task: str, before: int) -> None:
    """The caller sends its request again; a real worker does what is left of it."""
    run.start_worker().wait_serving()
    run.event("connectivity_restored", "the worker serves")
    began_ms = time.time_ns() // 1_000_000
    again = run.submit(["keyed", "keyed"], request=REQUEST)
    run.verify_step(again, after_ms=began_ms)
    shown = run.wait_task(again)
    run.event("steady_state", f"task {again}: {shown['state']}")
    measure_effects(run, [again], before=before, expected=2)
    if task:
        run.check("I9", again == task, f"sent again, the request is task {again}; before the loss it was {task}")


def _own_check(run: DrillRun) -> None:
    """The agent's own way to start and to say that it works, in its restored folder."""
    own, folder = run.production.home.settings.drills, run.production.home.state
    more = run.own_environment()
    run.followed += [one.shown({}) for one in own_steps(own.start, own.check)]
    if own.start:
        run.get_shadow().start(own.start, cwd=folder, more=more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + WAIT_S
    while (
        done := run.run(own.check, cwd=folder, more=more, seconds_max=OWN_CHECK_S_MAX)
    ).code != 0 and time.monotonic() < end:
        time.sleep(CHECK_EVERY_S)
    said = f"{shlex.join(own.check)}: exit {done.code}"
    if run.check("own check", done.code == 0, said):
        run.event("first_verified_step", said)


def work_and_die(run: DrillRun) -> str:
    """A copy of the agent works on a machine of its own, which then dies in the middle of a step. The task that it had;
    empty where no copy can run, because its vault needs a person."""
    locked = run.production.find_locked() if run.production.journal is not None else "the agent has no journal"
    if locked:
        run.deviations.append(f"no copy of the agent worked before the loss: {locked}")
        run.event("baseline_taken", describe(run))
        run.fault("server death", how="everything on the machine is absent", target="the agent's machine")
        task = ""
    else:
        with run.running_copy() as machine:
            worker = run.start_worker()
            worker.wait_serving()
            run.far_end("keyed").faults(Fault(kind=FaultKind.HOLD, skip=1))
            task = run.submit(["keyed", "keyed"], request=REQUEST)
            run.far_end("keyed").wait_inside()
            run.event("baseline_taken", f"task {task}: one step done, one under way; {describe(run)}")
            run.fault(
                "server death", how="every process of the machine is killed at once", target="a copy of the agent"
            )
            machine.kill()
            worker.process.wait()
        run.far_end("keyed").release()
        run.far_end("keyed").faults()
    text = "the worker's process is gone" if task else "everything of the agent on the machine is absent"
    run.event("detected", text, actor="drill")
    run.event("declared", "host lost", actor="drill lead")
    return task


def describe(run: DrillRun) -> str:
    """What production has acknowledged: with the restored snapshot's line in the timeline, it gives the data loss."""
    journal = run.production.journal
    if journal is None:
        return "no journal"
    return f"production's journal at {journal.incarnation}/{journal.sequence} of {iso(journal.newest_ms)}"


def restored_line(restored: Json) -> str:
    """A restored snapshot, with how far its journal is."""
    at, number = iso(int(restored["at"]) * 1000), restored["journal_sequence"]
    text = f"snapshot {restored['seq']} of {at} from {restored['place']}: {restored['files']} files"
    return text if number is None else f"{text}; its journal at {restored['incarnation']}/{number}"


def _check_nothing_left(run: DrillRun) -> None:
    """From inside: what the loss takes is absent."""
    paths = [str(one) for one in run.production.lost_with_host()]
    there = run.run(("sh", "-c", 'for one in "$@"; do if [ -e "$one" ]; then echo "$one"; fi; done', "sh", *paths)).out
    run.require("fresh root", not there.strip(), there.strip() or f"{len(paths)} paths of the lost machine are absent")


def restore(run: DrillRun, *, key_options: Iterable[str], typed: Iterable[tuple[str, str]]) -> Json:
    """By the command of the procedure; what it printed."""
    title = "restore the agent on a new machine"
    done = run.act(title, "--yes", "--json", *key_options, typed=typed, must=False)
    if done.code != 0:
        raise DrillFailed(f"holdfast recover: {done.said}")
    found: Json = done.json()
    restored = found["restored"]
    run.event("identity_unlocked", f"{run.key.kind if run.key else 'the vault'}; id {found['id']}")
    run.event("state_restored", restored_line(restored))
    if run.production.journal is not None:
        checked = run.act("check the journal", must=False)
        run.check("I11", checked.code == 0, f"holdfast journal check: exit {checked.code}")
    text = f"incarnation {found['incarnation']}; {found['suspect_tasks']} open tasks in doubt"
    run.event("journal_reconciled", "the agent has no journal" if found["incarnation"] is None else text)
    run.backup = out.BackupResult(
        places=tuple(one.name for one in run.production.places),
        archive=restored["archive"],
        age_s=round(max(0.0, run.began_ms / 1000 - int(restored["at"])), 3),
        check_rc=done.code,
        files_restored=restored["files"],
        bytes=restored["bytes"],
        seconds=round(found["restore_s"], 3),
        key_used=run.key.kind if run.key else "vault",
    )
    for one in restored["passed"]:
        run.find("critical", f"place {one['place']} could not restore {one['archive']}: {one['message']}")
    return found


def measure_effects(
    run: DrillRun, tasks: list[str], *, before: int, expected: int, parked: tuple[str, ...] = ()
) -> None:
    """What the far ends counted for these tasks: each step once."""
    effects = [one for task in tasks for one in run.effects_of(task)]
    ledgers = {kind: end.ledger() for kind, end in run.far_ends.items()}
    replayed = sum(one.outcome == "replayed" for page in ledgers.values() for one in page.requests)
    note_effects(run, effects, ledgers, before=before, expected=expected, replayed=replayed, parked=parked)


def note_effects(
    run: DrillRun,
    effects: Sequence[Effect],
    ledgers: Mapping[str, Page],
    *,
    before: int,
    expected: int,
    replayed: int,
    parked: tuple[str, ...] = (),
) -> None:
    bases = {(one.task, one.base) for one in effects}
    duplicates, lost = len(effects) - len(bases), max(0, expected - len(bases))
    run.effects = out.Effects(
        before=before,
        after=len(effects),
        far_end_counts={kind: page.count for kind, page in ledgers.items()},
        duplicates=duplicates,
        lost=lost,
        unknown_resolved={"by key": replayed, "by asking": 0, "by evidence": 0},
        parked=parked,
        adopted=tuple(f"{one.task}/{one.base}" for one in effects[:before]),
    )
    run.check("I1", duplicates == 0, f"{len(effects)} effects of {len(bases)} steps at the far ends")
    run.check("I2", lost == 0, f"{len(bases)} of {expected} steps took effect")


def check_identity(run: DrillRun, *, incarnation: int | None, refused: bool | None = None) -> out.IdentityResult:
    """A third party draws a challenge; the agent answers; a process that has none of our files judges the answer by the
    public key log, as a place shows it to everyone who can read it."""
    shown = run.act("see who the agent is", "--json", why="its JSON is read").json()
    challenge = secrets.token_hex(16)
    home = run.values["home"]
    answer = run.good("identity", "answer", "--home", home, "--challenge", challenge, "--asker", "drill").out.strip()
    folder = run.folder / "public"
    folder.mkdir(exist_ok=True)
    own = run.production.home
    for name in (own.log_file.name, own.receipts_file.name):
        (folder / name).write_bytes(run.run(("cat", str(own.folder / name))).out.encode())
    (folder / "answer").write_text(answer)
    desk = Path("/srv/holdfast-verifier")
    copies = [(one, desk / one.name) for one in sorted(folder.iterdir())]
    log = desk / own.log_file.name
    with run.machine(gone=run.production.everything(), copies=copies, name="verifier"):
        words = ("--log", str(log), "--id", run.production.log.id, "--challenge", challenge, "--asker", "drill")
        judged = run.holdfast("identity", "check-answer", *words, "--answer", f"@{desk / 'answer'}", "--json")
    same = judged.code == 0 and judged.json()["id"] == run.production.log.id == shown["id"]
    run.check("identity", same, "an answer under the same id" if same else f"the answer is not accepted: {judged.said}")
    return out.IdentityResult(
        agent_id_before=run.production.log.id,
        agent_id_after=str(shown["id"]),
        challenge=challenge,
        answer=answer,
        verifier="holdfast identity check-answer in a machine without any file of the agent",
        witnesses_confirming=int(shown["head"]["receipts"]),
        incarnation_before=None if run.production.journal is None else run.production.journal.incarnation,
        incarnation_after=incarnation,
        old_instance_refused=refused,
        same=same,
    )


def compare_state(
    run: DrillRun, restored: Mapping[str, str], *, snapshot_s: int, covered: Covered | None = None
) -> out.StateResult:
    """`restored`: the digest of each file of the restored folder."""
    found = compare_files(run.production, restored, snapshot_s=snapshot_s, covered=covered)
    equal = not found.differing
    text = f"{found.compared} files compared"
    if found.lost:
        run.lost_ms = min(found.lost_ms, run.began_ms)
        text += f"; {len(found.lost)} are newer than the snapshot, the newest of {iso(run.lost_ms)}"
    if found.moved:
        names = ", ".join(found.moved[:5])
        why = "put there since then with an older time, or changed in their mode alone"
        run.find("major", f"not as in the snapshot: {names}: {why}; back up, then run the drill again")
    run.check("state", equal, text if equal else f"{text}; not as they were: {', '.join(found.differing[:5])}")
    run.rpo = replace(out.NOT_MEASURED, lost_items={"files": len(found.lost)})
    return replace(
        out.NOT_COMPARED,
        manifest_root_before=found.root_before,
        manifest_root_after=found.root_after,
        files_compared=found.compared,
        differing=found.differing,
        hash_chain_ok={one.code: one.passed for one in run.checks}.get("I11"),
    )


def measure_loss(run: DrillRun, snapshot: Json, *, tasks: set[str] | None) -> None:
    """What production has acknowledged and the restored agent does not have: records of its journal, and files.
    `tasks`: those of the restored journal, where it was opened."""
    acked, recovered = run.production.journal, snapshot["journal_sequence"]
    files = run.rpo.lost_items.get("files", 0) if run.rpo is not None else 0
    if acked is None or recovered is None:
        items: dict[str, int] = {"files": files}
        last_acked = last_recovered = None
        newest_ms = 0
    else:
        records = max(0, acked.sequence - int(recovered))
        items = {"journal records": records, "files": files}
        if tasks is not None:
            items["tasks"] = len(acked.tasks - tasks)
        newest_ms = acked.newest_ms if records else 0
        last_acked = out.Commit(incarnation=acked.incarnation, sequence=acked.sequence, at=iso(acked.newest_ms))
        last_recovered = out.Commit(
            incarnation=int(snapshot["incarnation"]), sequence=int(recovered), at=iso(int(snapshot["at"]) * 1000)
        )
    # From the snapshot to the newest change that it lacks, of a record or a file; nothing where it lacks none.
    seconds = max(0.0, max(newest_ms, run.lost_ms) / 1000 - int(snapshot["at"]))
    run.rpo = replace(
        out.NOT_MEASURED,
        actual_s=round(seconds, 3),
        actual_items=sum(items.values()),
        last_acked_commit=last_acked,
        last_recovered_commit=last_recovered,
        lost_items=items,
    )
