"""The journal: its file, its keys, and what it does not hold."""

from __future__ import annotations

from holdfast.errors.base import EXIT_PLACE, Conflict, NotFound, Retryable, StateUnusable


class JournalBusy(Retryable):
    code = "journal-busy"
    default_hint = "another process is writing; it is tried again, or see `holdfast doctor`"


class JournalFull(Retryable):
    code = "journal-full"
    exit_code = EXIT_PLACE
    default_hint = "free some space on the journal's disk; work goes on by itself, nothing was lost"


class JournalStopped(StateUnusable):
    code = "journal-stopped"
    default_hint = (
        "the disk reported a failed write; the journal is rewritten to a new file when it is next "
        "opened alone; see `holdfast doctor`"
    )


class JournalDamaged(StateUnusable):
    code = "journal-damaged"
    default_hint = (
        "nothing further is begun; keep the file, run `holdfast doctor --deep` to see what is "
        "damaged, then put the newest good copy back with `holdfast recover --journal FILE`"
    )


class JournalNewer(StateUnusable):
    code = "journal-newer"
    default_hint = "install the newer Holdfast; nothing was changed"


class JournalOlderCopy(StateUnusable):
    """The file is older than what this machine has already committed."""

    code = "journal-older-copy"
    default_hint = (
        "put the newer file back; if it is lost, `holdfast recover --journal FILE` makes this "
        "a proper restore: effects since the copy are looked up or parked, never repeated blindly"
    )


class JournalGone(StateUnusable):
    """A journal of this name was here, and its file is not there any more."""

    code = "journal-gone"
    default_hint = (
        "put the journal's file back (then `holdfast recover --journal FILE` if it is older); "
        "where no copy is left, `holdfast recover --journal FILE --begin-anew`"
    )


class NotAJournal(StateUnusable):
    code = "not-a-journal"
    default_hint = "check the path; Holdfast never overwrites a file it did not make"


class CommitUnknown(Retryable):
    code = "commit-unknown"
    default_hint = "the row is read again under a lock before anything is sent"


class SessionLost(Retryable):
    code = "session-lost"
    default_hint = (
        "the process was paused or the journal was unreachable for longer than the lease; "
        "another session resumes its tasks"
    )


class LeaseLost(Conflict):
    """A write under an epoch that is no longer the task's: nothing was written."""

    code = "lease-lost"
    default_hint = "another worker has resumed the task; this run stops, nothing is lost"

    def __init__(self, *, task_id: str, epoch: int) -> None:
        super().__init__(f"task {task_id}: epoch {epoch} is stale; nothing was written")
        self.task_id = task_id
        self.epoch = epoch


class KeysMissing(StateUnusable):
    code = "keys-missing"
    default_hint = "put the journal's keys.json back beside it; without it payloads cannot be read"


class KeysWrong(StateUnusable):
    code = "keys-wrong"
    default_hint = "this keys.json belongs to another journal, or was changed; put the right one back"


class HighWaterDamaged(StateUnusable):
    """The note of how far this machine's journal had come cannot be read."""

    code = "high-water-damaged"
    default_hint = (
        "without it an old copy of the journal cannot be told from the newest one; if you are sure "
        "that the journal is the newest, `holdfast recover --journal FILE` makes this a restore"
    )


class SecretsDamaged(StateUnusable):
    code = "secrets-damaged"
    default_hint = (
        "put secrets.sealed back from a copy of the same keys.json; or move it away and set the "
        "secrets again with `holdfast secret set`"
    )


class TaskNotFound(NotFound):
    code = "task-not-found"
    default_hint = "`holdfast task list` shows the tasks of this journal"

    def __init__(self, task: str) -> None:
        super().__init__(f"no task {task} in this journal")
        self.task = task


class StepNotFound(NotFound):
    code = "step-not-found"
    default_hint = "`holdfast task show TASK` lists its steps"


class ApprovalNotFound(NotFound):
    code = "approval-not-found"
    default_hint = "`holdfast approval list` shows what waits for a decision"


class BlobNotFound(NotFound):
    code = "blob-not-found"
