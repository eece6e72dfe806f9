"""Suspects: tasks whose last runs killed their process.

A suspect runs alone, so that it can take no other task with it. Under steady load no engine is ever idle: one that has
not been idle for a while takes a suspect all the same, one at a time, so that suspects wait for seconds and not for
ever. A closed step clears a task of suspicion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from holdfast.core.ids import TaskId
from holdfast.journal.contract import Claimed
from holdfast.journal.rules import CRASHES_ALONE
from holdfast.runtime.session.task_writer import TaskWriter

PATIENCE_S = 1.0  # how long a busy engine leaves suspects to an idle one


class Suspects:
    """Of one engine; `writers` are those of the tasks that it holds now."""

    def __init__(self, writers: Mapping[TaskId, TaskWriter]) -> None:
        self._writers = writers
        self._alone: TaskId | None = None
        self._beside: TaskId | None = None  # the one that runs here beside others
        self._idle_at = 0.0  # when nothing ran here, or no suspect waited

    def may_claim(self, *, idle: bool) -> bool:
        """Whether a suspect may run here beside others."""
        now = asyncio.get_running_loop().time()
        if idle:
            self._idle_at = now
        under_suspicion = self._beside in self._writers and not self._is_cleared(self._beside)
        return now - self._idle_at >= PATIENCE_S and not under_suspicion

    def took(self, claimed: Claimed | None) -> None:
        if claimed is not None and claimed.crashes >= CRASHES_ALONE:
            self._beside = claimed.hold.task_id
        else:
            self._idle_at = asyncio.get_running_loop().time()

    def runs_alone(self, task_id: TaskId) -> None:
        self._alone = task_id

    def one_runs_alone(self) -> bool:
        if self._is_cleared(self._alone):
            self._alone = None
        return self._alone is not None

    def left(self, task_id: TaskId) -> None:
        """This engine holds the task no more."""
        if self._alone == task_id:
            self._alone = None

    def runs_one(self) -> bool:
        """Whether a task runs here that is still under suspicion."""
        return any(one in self._writers and not self._is_cleared(one) for one in (self._alone, self._beside))

    def _is_cleared(self, task_id: TaskId | None) -> bool:
        writer = None if task_id is None else self._writers.get(task_id)
        return writer is not None and writer.view.progress_epoch == writer.hold.epoch
