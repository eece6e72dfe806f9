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

from holdfast.core.rest import NeedsPerson, Suspended
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
    if known is None:
        writer.defer(_entry(digests, changed=[]))
        return
    changed = find_changed(known.body.get("marks"), digests)
    if not changed:
        return
    report(changed)
    accepted = any(item.kind is InboxKind.RETRY for item in writer.inbox)
    if park and not accepted:
        raise Suspended(_changed(changed))
    writer.defer(_entry(digests, changed=changed))


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
        passed: dict[str, str] = {} if known is None else dict(known.body.get("passed") or {})
        (was, old), (digest, new) = before, now
        if was == digest or passed.get(was) == digest:
            return
        changed = [HEAD[key] for key in HEAD if old.get(key) != new.get(key)]
        self.report(changed)
        accepted = any(item.kind is InboxKind.RETRY for item in self.writer.inbox)
        if self.park and not accepted:
            raise Suspended(_changed(changed))
        body: Body = {"what": "asked", "passed": {**passed, was: digest}, "changed": changed}
        self.writer.defer(NewRecord(kind=RecordKind.NOTE, ordinal=ASKED, body=body))


def find_changed(before: object, now: Mapping[str, str]) -> list[str]:
    """Names of the marks that differ; one that cannot be known ("") never does, nor one of LATER
    that was not recorded."""
    if not isinstance(before, dict):
        return []
    old: dict[str, object] = before  # pyright: ignore[reportUnknownVariableType] - JSON object
    names = sorted({*old, *now})
    return [
        name
        for name in names
        if old.get(name, "-") != now.get(name, "-")
        and old.get(name) != ""
        and now.get(name) != ""
        and not (name in LATER and name not in old)
    ]


def _changed(names: list[str]) -> NeedsPerson:
    return NeedsPerson(f"changed: its {' and '.join(names)} changed since it was begun")


def _entry(digests: Mapping[str, str], *, changed: list[str]) -> NewRecord:
    body: Body = {"what": "marks", "marks": dict(digests)}
    if changed:
        body["changed"] = changed
    return NewRecord(kind=RecordKind.NOTE, ordinal=MARKS, body=body)
