"""The table of every breach ever found, by any suite, in the order they were found.

An entry stays for ever. Most are tests, which `make test` runs with all others; a rule whose
absence was the breach is kept as a planted bug, which the simulation must find in its own worlds.
A new finding gets a line here together with the change that mends it.
"""

from __future__ import annotations

from dataclasses import dataclass

_REGRESSIONS = "tests/crash/test_regressions.py"
_DISK = "tests/crash/test_disk_regressions.py"
_PLANTED = "tests/simulation/test_simulate.py::test_a_planted_bug_is_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    name: str
    found_by: str
    what: str
    test: str  # the node that pytest runs
    left_out: str = ""  # why `make test` does not run it; empty: it does


def _planted(name: str, bug: str, what: str, *, found_by: str = "simulation") -> Reproduction:
    return Reproduction(name=name, found_by=found_by, what=what, test=f"{_PLANTED}[{bug}]")


TABLE: tuple[Reproduction, ...] = (
    Reproduction(
        name="two-first-starts",
        found_by="races",
        what="Two first starts at once gave one journal two sets of keys.",
        test="tests/unit/test_keyfile.py::test_two_that_start_at_once_get_the_same_keys",
    ),
    Reproduction(
        name="restored-call-without-its-yes",
        found_by="review",
        what="After a restore a call that needs a person's yes was sent to find out about it.",
        test="tests/runtime/test_restore.py::test_a_restored_call_that_needs_a_yes_is_not_sent_without_one",
    ),
    Reproduction(
        name="yes-for-other-code",
        found_by="review",
        what="A yes that was given for the old code counted for the new.",
        test="tests/runtime/test_approval_version.py::test_a_yes_for_the_old_code_is_void_for_the_new",
    ),
    Reproduction(
        name="opened-between-two-commits",
        found_by="races",
        what="A journal opened while another process committed was taken for an older copy.",
        test=f"{_REGRESSIONS}::test_opening_while_another_process_commits",
    ),
    Reproduction(
        name="busy-journal-ends-the-engine",
        found_by="races",
        what="A journal that was busy for long ended the engine of a program for good.",
        test=f"{_REGRESSIONS}::test_engine_outlives_a_busy_journal",
    ),
    Reproduction(
        name="older-file-newer-log",
        found_by="crash suites",
        what="An older file under a newer log was played together into a journal that never was.",
        test="tests/integration/test_stamp.py::test_file_of_an_earlier_checkpoint_under_the_newest_log",
    ),
    _planted(
        "past-a-broken-call",
        "code goes on past a call it broke off",
        "Code that broke off a call went on as if the call had ended.",
    ),
    _planted(
        "keeps-what-it-lost",
        "a living session keeps a run it lost",
        "A session that was declared dead and began anew went on with a run that it had lost.",
    ),
    _planted(
        "time-stands-still",
        "time stands still behind a newer record",
        "Behind a record of a later clock the journal's time stood still, and nothing fell due.",
    ),
    _planted(
        "unapplied-result",
        "an unapplied result taken as evidence",
        "A result that a lost run could not record was taken for another attempt's.",
    ),
    _planted(
        "window-looked-at-once",
        "key window looked at once",
        "A key window that closed between the decision and the first byte was not noticed.",
    ),
    _planted(
        "decided-before-quiet",
        "a person decides before quiet",
        "A person's decision was taken while a request might still have been under way.",
    ),
    _planted(
        "broken-confirmation",
        "a confirmation broken off is believed",
        "A commit in doubt whose confirmation was broken off counted as written.",
    ),
    _planted(
        "moves-after-the-end",
        "a branch moves after its run has ended",
        "A branch of a run that had ended wrote one more record.",
    ),
    _planted(
        "blind-restore",
        "a restored journal is taken for the newest",
        "Effects of the lost timeline were done again after a restore.",
        found_by="explorer",
    ),
    _planted(
        "machine-stood-still",
        "a machine that stood still goes on",
        "A machine that was paused as a whole sent on its old lease when it went on.",
    ),
    Reproduction(
        name="reserve-taken-for-space",
        found_by="full disk",
        what="Space given back from the reserve was taken for space that had returned.",
        test="tests/unit/test_reserve.py::test_space_that_was_given_back_does_not_count_as_returned",
    ),
    Reproduction(
        name="journal-gone",
        found_by="review",
        what="A journal that was gone was replaced by an empty one in silence.",
        test="tests/runtime/test_odd_ends.py::test_a_journal_that_is_gone_is_not_silently_replaced",
    ),
    Reproduction(
        name="engine-ended-unheard",
        found_by="runtime tests",
        what="Whoever waited for a task in a program whose engine had ended waited for ever.",
        test="tests/runtime/test_lease.py::test_whoever_waits_learns_that_the_engine_has_ended",
    ),
    Reproduction(
        name="scope-kept-from-its-owner",
        found_by="runtime tests",
        what="The engine that settles scopes kept one from the program that asked for it.",
        test="tests/runtime/test_scope.py::test_a_scope_is_not_kept_from_its_owner_by_the_engine_that_settles_scopes",
    ),
    Reproduction(
        name="time-of-two-boots",
        found_by="simulation",
        what="Two processes of one boot did not agree about the time after a clock was set.",
        test="tests/unit/test_steady.py::test_processes_of_one_boot_agree_whenever_they_began",
    ),
    Reproduction(
        name="unkept-result-of-a-child",
        found_by="runtime tests",
        what="A blocking tool whose result could not be kept was recorded as never done.",
        test="tests/runtime/test_blocking.py::test_a_childs_result_that_cannot_be_kept_does_not_undo_its_effect",
    ),
    Reproduction(
        name="slow-import-is-an-attempt",
        found_by="runtime tests",
        what="A child that was slow to import its tool used up the time of the call.",
        test="tests/integration/test_child_pool.py::test_the_time_of_a_call_counts_from_its_entry",
    ),
    Reproduction(
        name="swallowed-cancel",
        found_by="runtime tests",
        what="A cancel in the moment of the event it waited for was swallowed: an engine hung.",
        test="tests/unit/test_waiting.py::test_a_cancel_in_the_moment_of_the_event_is_not_swallowed",
    ),
    Reproduction(
        name="notice-told-twice",
        found_by="runtime tests",
        what="Two workers of one journal told the same notice.",
        test="tests/runtime/test_notices.py::test_two_workers_tell_it_once",
    ),
    Reproduction(
        name="starved-suspect",
        found_by="soak",
        what="A task under suspicion waited for as long as its workers had other work.",
        test="tests/runtime/test_poison.py::test_a_suspect_gets_its_turn_while_the_worker_is_never_idle",
    ),
    Reproduction(
        name="false-failure-after-restore",
        found_by="explorer",
        what="After a restore a refusal closed a fenced step whose lost attempt still landed.",
        test="tests/runtime/test_restore_suspects.py"
        "::test_a_refusal_after_a_restore_does_not_speak_for_the_lost_timeline",
    ),
    Reproduction(
        name="repeat-after-restore",
        found_by="explorer",
        what="After a restore a retry slot was sent although a later slot had been done.",
        test="tests/runtime/test_restore_suspects.py::test_a_suspect_retry_slot_asks_about_the_slots_after_it",
    ),
    Reproduction(
        name="sync-fails-while-closing",
        found_by="failed sync",
        what="A sync that failed while a journal was closed was not heard.",
        test=f"{_DISK}::test_a_sync_that_fails_while_closing_stops_the_journal",
    ),
    Reproduction(
        name="nameless-log",
        found_by="failed sync",
        what="A power cut lost every commit, because the log's name was never made durable.",
        test=f"{_DISK}::test_the_log_has_a_durable_name_before_anything_is_written",
    ),
    Reproduction(
        name="claim-folded-twice",
        found_by="full disk",
        what="A claim that met a full disk was folded twice and looked like damage.",
        test=f"{_DISK}::test_a_claim_that_finds_the_disk_full_is_tried_again_in_the_reserve",
    ),
    Reproduction(
        name="unmarked-send",
        found_by="full disk",
        what="A send that could not be marked on a full disk failed its task.",
        test=f"{_DISK}::test_a_send_that_cannot_be_marked_is_not_sent_and_runs_again",
    ),
    Reproduction(
        name="full-disk-as-missing-rights",
        found_by="full disk",
        what="A full disk was told as a file that may not be opened.",
        test=f"{_DISK}::test_a_full_disk_is_not_taken_for_missing_rights",
    ),
    Reproduction(
        name="broken-borders",
        found_by="fuzzing",
        what="Bad UTF-8, garbled frames, damaged columns and deep JSON ended programs.",
        test="tests/fuzz/test_findings.py",
    ),
    Reproduction(
        name="row-that-nobody-wrote",
        found_by="bit flips",
        what="A task's row with a flipped bit ended readers and engines with a ValueError.",
        test=f"{_REGRESSIONS}::test_a_row_that_nobody_wrote_is_told_as_damage",
    ),
    Reproduction(
        name="broken-index-ends-the-engine",
        found_by="bit flips",
        what="A flipped bit in an index ended the engine with SQLite's own error, not ours.",
        test=f"{_REGRESSIONS}::test_an_index_that_is_broken_is_told_as_damage",
    ),
    Reproduction(
        name="changed-definition",
        found_by="bit flips",
        what="A changed letter in a table's or trigger's definition was noticed by nobody.",
        test=f"{_REGRESSIONS}::test_a_definition_that_was_changed_is_refused",
    ),
    Reproduction(
        name="damage-fails-a-task",
        found_by="bit flips",
        what="What a damaged journal refused was recorded as the task's own failure.",
        test=f"{_REGRESSIONS}::test_a_journal_that_breaks_in_a_run_fails_no_task",
    ),
    Reproduction(
        name="row-against-its-records",
        found_by="bit flips",
        what="Flipped names, due times, marks and applied facts were found by no check.",
        test="tests/unit/test_row_check.py",
    ),
    Reproduction(
        name="copy-without-a-record",
        found_by="rewind",
        what="A restored copy without any record made no request suspect: effects were repeated.",
        test="tests/runtime/test_restore.py::test_a_copy_without_a_record_makes_all_requests_suspect",
    ),
    Reproduction(
        name="lost-effect-at-another-place",
        found_by="rewind",
        what="After a restore a call at another place of the task repeated what was done.",
        test="tests/rewind/test_rewind.py::test_nothing_is_done_twice_and_what_was_lost_is_adopted",
    ),
    Reproduction(
        name="two-answers-to-one-question",
        found_by="adversary",
        what="Contradictory decisions of one step were all recorded; a later grant overturned a refusal.",
        test="tests/crash/test_decision_races.py::test_one_of_several_decisions_counts",
    ),
    Reproduction(
        name="statement-reaches-remarks",
        found_by="review",
        what="A Transactional tool could drop the trigger that guards remarks: the journal was destroyed.",
        test="tests/unit/test_own_tables.py::test_no_statement_changes_or_reads_a_definition_of_the_journal",
    ),
    Reproduction(
        name="exit-code-ends-the-service",
        found_by="adversary",
        what="A tool that ended the process with exit code 2, 6 or 7 ended the supervising parent for good.",
        test="tests/integration/test_supervisor.py::test_an_exit_call_of_a_tool_is_a_death_like_any_other",
    ),
    Reproduction(
        name="waiting-client-blocks-the-repair",
        found_by="adversary",
        what="After a failed sync a client that only waited kept the journal open: no worker could repair it.",
        test="tests/runtime/test_full_disk.py::test_a_client_that_waits_does_not_stand_in_the_way_of_the_repair",
    ),
    Reproduction(
        name="removed-journal-is-served",
        found_by="adversary",
        what="A worker whose journal file was removed went on with the file without a name.",
        test="tests/runtime/test_full_disk.py::test_a_journal_that_is_removed_ends_its_engine",
    ),
    Reproduction(
        name="forgotten-await",
        found_by="new user",
        what="A task that forgot to await `run.call` succeeded without its effect.",
        test="tests/runtime/test_misuse.py::test_a_call_that_was_never_awaited_fails_the_task_and_is_named",
    ),
    Reproduction(
        name="nobody-serves-it",
        found_by="new user",
        what="A task whose name no live worker has waited without a word; `doctor` called all well.",
        test="tests/runtime/test_unserved.py::test_a_task_of_another_app_is_told_to_whoever_waits_or_looks",
    ),
)
