"""The journal: its file, its keys, and what it does not hold."""

from __future__ import annotations

from holdfast.errors.base import EXIT_PLACE, Conflict, HostUnfit, NotFound, Retryable, StateUnusable


class JournalBusy(Retryable):
    """Another process held the journal's write lock, or was repairing the journal, for too long. Nothing was written.
    Workers try again by themselves; you can repeat a command."""

    code = "journal-busy"
    default_hint = (
        "another process uses it: run the command again; a worker tries again by itself. See `holdfast doctor` if this "
        "continues"
    )


class JournalRefused(HostUnfit):
    """The database server answers, but refuses the connection: its name, the user, the password or a certificate is
    wrong. Nothing was written, and trying again changes nothing."""

    code = "journal-refused"
    default_hint = "correct the url of the journal; the password belongs into a passfile (~/.pgpass) or a service file"


class JournalFull(Retryable):
    """There is no space on the journal's disk. No new step begins. Results of running calls are still recorded, in
    reserved space."""

    code = "journal-full"
    exit_code = EXIT_PLACE
    default_hint = "free some space on the journal's disk; work then resumes by itself, and nothing is lost"


class JournalStopped(StateUnusable):
    """The disk reported a failed write, so memory and disk may differ; no step begins on this file. Check the disk.
    Every process that has the journal open closes it. The next one that opens it rewrites it to a new file and keeps
    every record; a worker does so by itself. Open the journal again."""

    code = "journal-stopped"
    default_hint = (
        "the disk reported a failed write. Check the disk and open the journal again: the first process that opens it "
        "rewrites it to a new file. See `holdfast doctor`"
    )


class JournalDamaged(StateUnusable):
    """The file's structure, a record's seal or a task's hash chain is broken. A single damaged task is parked and the
    others continue; an unreadable file stops all work."""

    code = "journal-damaged"
    default_hint = (
        "no new work starts. Keep the file and run `holdfast doctor --deep` to see what is damaged; then put the "
        "newest good copy back with `holdfast recover --journal FILE`"
    )


class JournalNewer(StateUnusable):
    """A newer Holdfast has written this journal."""

    code = "journal-newer"
    default_hint = "install the Holdfast that wrote this journal, or a newer one; nothing was changed"


class JournalOlderCopy(StateUnusable):
    """The file is older than what this machine has already committed: an old copy was put back. Running it would repeat
    what was done since."""

    code = "journal-older-copy"
    default_hint = (
        "put the newer file back. If it is lost, run `holdfast recover --journal FILE`: Holdfast then looks up or "
        "parks each effect that may have happened since this copy was made, and never repeats one on a guess"
    )


class RowsPutBack(StateUnusable):
    """The journal's running total does not match its tasks: something other than Holdfast put the rows of a task back
    to an older state, or deleted a task. Running it could repeat what the missing records say is done. The total does
    not show which task it is."""

    code = "rows-put-back"
    default_hint = (
        "put the newest good copy of the journal back. If there is none, run `holdfast recover --journal FILE`: "
        "Holdfast then continues with this file, and looks up or parks every effect of its open tasks before it sends "
        "anything"
    )


class JournalGone(StateUnusable):
    """The journal's file is missing. The folder `instance/`, or the list of journals in the keys, shows that it was
    used here; or it was removed or replaced while a process had it open, and that process stops. Its effects have
    happened, so Holdfast does not start a new journal. With `--begin-anew` Holdfast starts an empty one: it forgets
    open tasks and keeps files and secrets. If you then submit a request again under its old id, Holdfast looks up or
    parks each effect before it sends anything."""

    code = "journal-gone"
    default_hint = (
        "put the journal's file back (if it is an older copy, then run `holdfast recover --journal FILE`). If no "
        "copy is left: `holdfast recover --journal FILE --begin-anew`"
    )


class NotAJournal(StateUnusable):
    """There is no journal at this path, or the file is something else. `holdfast worker APP` and `holdfast submit APP
    REQUEST` make a journal if there is none."""

    code = "not-a-journal"
    default_hint = "check the path; Holdfast never overwrites a file that it did not make"


class CommitUnknown(Retryable):
    """The disk reported an error during a commit, so the journal cannot say yet whether the write is durable. If the
    row cannot be read again, the journal stops (journal-stopped)."""

    code = "commit-unknown"
    default_hint = "you need not act: Holdfast checks whether the disk has the record before it sends anything"


class SessionLost(Retryable):
    """The process was paused for longer than its lease (a laptop slept, a debugger held it, the disk hung).
    Other sessions may have its tasks, so it stops at once. A worker is started again by its parent; an
    embedded engine begins a new session."""

    code = "session-lost"
    default_hint = (
        "the process was paused, or could not reach the journal, for longer than its lease; another session "
        "resumes its tasks"
    )


class LeaseLost(Conflict):
    """A run wrote under an epoch that is no longer the task's: another worker has resumed it. Nothing was written."""

    code = "lease-lost"
    default_hint = "another worker has resumed the task; this run stops, and nothing is lost"

    def __init__(self, *, task_id: str, epoch: int) -> None:
        super().__init__(f"task {task_id}: epoch {epoch} is stale; nothing was written")
        self.task_id = task_id
        self.epoch = epoch


class KeysMissing(StateUnusable):
    """The journal has no `keys.json`. Without it payloads cannot be read and effect keys cannot be made. Holdfast never
    makes new keys for an old journal."""

    code = "keys-missing"
    default_hint = "put keys.json back next to the journal; without it Holdfast cannot read the journal"


class KeysWrong(StateUnusable):
    """`keys.json` is malformed, was changed, or belongs to another journal."""

    code = "keys-wrong"
    default_hint = "this keys.json belongs to another journal, or was changed; put the right one back"


class HighWaterDamaged(StateUnusable):
    """The file in `instance/` that names the newest record of this machine's journal cannot be read."""

    code = "high-water-damaged"
    default_hint = (
        "without this file Holdfast cannot tell an old copy of the journal from the newest one. If you are sure that "
        "this journal is the newest, run `holdfast recover --journal FILE`"
    )


class SecretsDamaged(StateUnusable):
    """`secrets.sealed` beside the journal cannot be opened: it was changed, cut short, or sealed with the keys of
    another journal. The journal itself is not harmed."""

    code = "secrets-damaged"
    default_hint = (
        "put secrets.sealed back from a backup made with the same keys.json; or move it away and set the secrets "
        "again with `holdfast secret set`"
    )


class TaskNotFound(NotFound):
    """This journal has no such task, or retention has removed it. Check that `--journal` names the right journal."""

    code = "task-not-found"
    default_hint = "`holdfast task list` shows the tasks of this journal"

    def __init__(self, task: str) -> None:
        super().__init__(f"no task {task} in this journal")
        self.task = task


class StepNotFound(NotFound):
    """The task has no step with this ordinal, or no step has this effect key."""

    code = "step-not-found"
    default_hint = "`holdfast task show TASK` lists its steps"


class ApprovalNotFound(NotFound):
    """The step does not wait for an approval: it has its answer, or it never asked. The first answer counts, also
    before a worker has acted on it. Nothing was recorded."""

    code = "approval-not-found"
    default_hint = "`holdfast approval list` shows what waits for an answer"


class BlobNotFound(NotFound):
    """No blob has this digest, or retention removed it with the last task that used it. Get the contents from their
    source again."""

    code = "blob-not-found"
