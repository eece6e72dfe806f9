"""Marks: digests of what a task was begun with, so that a change before its resume is noticed.

A task's code is replayed over its records. Where it asks for another call than the one recorded, replay notices by
itself; but code, a prompt or a model may change without changing a call, and the rest of the task then goes another way
than its beginning. So the first run records a digest of each (`@marks`), and every later run compares.

A change is always reported: in the log, in the record and by `holdfast task show`. What follows is the task's own
policy: `continue` takes what is there now, `park` asks a person first, who accepts with `holdfast task retry`.
`run.version` is for changes that the code itself tells apart.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from holdfast.core.rest import NeedsPerson, Suspended
from holdfast.journal.bodies import HeadsNote, MarksNote
from holdfast.journal.contract import InboxKind
from holdfast.journal.records import Body, NewRecord, RecordKind
from holdfast.runtime.session.task_writer import TaskWriter

MARKS = "@marks"
ASKED = "@asked"
DIGEST_CHARS = 16
Report = Callable[[list[str]], None]  # what has changed
LATER = frozenset(("code", "endpoints"))  # of agents: journals of before have no record of them
HEAD = {"model": "model", "settings": "settings", "system": "prompt", "tools": "tools"}


def code_digest(function: Callable[..., Any]) -> str:  # Any: user code
    """A digest of the function's own source, without comments and layout; "" where there is none. Not of what it calls:
    tools have a version of their own, other functions are not followed."""
    try:
        return source_digest(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError):
        return ""


def source_digest(source: str) -> str:
    tree = ast.parse(textwrap.dedent(source))
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:DIGEST_CHARS]


def note_changes(writer: TaskWriter, digests: Mapping[str, str], *, park: bool, report: Report) -> None:
    """Record the marks where they are new, report where they have changed. Raises Suspended where a changed task has to
    wait for a person."""
    known = writer.view.notes.get(MARKS)
    changed = [] if known is None else find_changed(MarksNote.read(known.body).marks, digests)
    if known is not None and not changed:
        return
    if changed:
        _accept(writer, changed, park=park, report=report)
    note = MarksNote(dict(digests), changed or UNSET)
    writer.defer(NewRecord(kind=RecordKind.NOTE, ordinal=MARKS, body=note.body()))


@dataclass(slots=True, kw_only=True)
class HeadChanges:
    """What a task's policy says about a model that is asked with another head than recorded. The head is what is sent
    before the talk: model, settings, prompt, tools. A recorded reply stays what it is; what comes after it uses the
    head that is there now, or waits until a person accepts it. A change that was accepted once is not asked about again
    (`@asked`)."""

    writer: TaskWriter
    park: bool
    report: Report

    def check_head(self, before: tuple[str, Body], now: tuple[str, Body]) -> None:
        """Both as digest and head. Raises Suspended where a person has to say yes first."""
        known = self.writer.view.notes.get(ASKED)
        passed = {} if known is None else HeadsNote.read(known.body).passed
        (was, old), (digest, new) = before, now
        if was == digest or passed.get(was) == digest:
            return
        changed = [HEAD[key] for key in HEAD if old.get(key) != new.get(key)]
        _accept(self.writer, changed, park=self.park, report=self.report)
        note = HeadsNote({**passed, was: digest}, changed)
        self.writer.defer(NewRecord(kind=RecordKind.NOTE, ordinal=ASKED, body=note.body()))


def find_changed(old: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of the marks that differ; one that cannot be known ("") never does, nor one of LATER
    that was not recorded."""
    names = sorted({*old, *now})
    return [
        name
        for name in names
        if old.get(name, "-") != now.get(name, "-")
        and old.get(name) != ""
        and now.get(name) != ""
        and not (name in LATER and name not in old)
    ]


def _accept(writer: TaskWriter, changed: list[str], *, park: bool, report: Report) -> None:
    """Report it. Raises Suspended where a person has to accept it first."""
    report(changed)
    if park and not any(item.kind is InboxKind.RETRY for item in writer.inbox):
        raise Suspended(
            NeedsPerson(
                f"changed: the task's {' and '.join(changed)} changed after it began; retry the task to continue"
            )
        )
