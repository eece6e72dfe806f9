"""Holdfast keeps an AI agent alive through the loss of its process, disk, machine or region.

The public names and nothing else; each is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.app.handle import TaskHandle
    from holdfast.app.holdfast import Holdfast
    from holdfast.app.loading import App
    from holdfast.app.open import open  # noqa: A004 - the public name
    from holdfast.core.effect import Fenced, Idempotent, Keyed, Queryable, Read, Transactional, Unrepeatable
    from holdfast.core.mail import Letter
    from holdfast.errors import (
        ApprovalNotFound,
        Busy,
        DoneWithOtherArguments,
        GateRefused,
        HoldfastError,
        JournalStopped,
        KeyReused,
        MessageConflict,
        ModelRefused,
        NoSchema,
        NotDurable,
        NotNow,
        NotSent,
        NotSettleable,
        Refused,
        RequestConflict,
        ResultErased,
        ResultNotKept,
        ScopeBusy,
        ScratchNotKept,
        StepFailed,
        StepSkipped,
        TaskCancelled,
        TaskFailed,
        TaskParked,
        TaskUnfinished,
        ToolFailed,
    )
    from holdfast.host.log import Log
    from holdfast.layout.engine_settings import Settings
    from holdfast.runtime.agent.agent import Agent, Answer, Conversation
    from holdfast.runtime.agent.remembering import recall, remember
    from holdfast.runtime.gate.gate import Above, Gate, Limit
    from holdfast.runtime.models.endpoint import Endpoint
    from holdfast.runtime.models.endpoints import Endpoints
    from holdfast.runtime.models.model import Model, Price
    from holdfast.runtime.models.reply import Reply, Restarted, TextDelta, ToolCall, Usage
    from holdfast.runtime.scratch.scratch import Scratch
    from holdfast.runtime.step.plan import Plan, PlanItem
    from holdfast.runtime.task.mail_task import on_mail
    from holdfast.runtime.task.run import Approval, Run
    from holdfast.runtime.task.scope import Scope
    from holdfast.runtime.task.talk import Talk
    from holdfast.runtime.task.task import TaskType, task
    from holdfast.runtime.tool.mail_tool import send_mail
    from holdfast.runtime.tool.schema import Field
    from holdfast.runtime.tool.tool import Absent, Apply, Call, Found, Many, Tool, Unsure, tool

    __version__: str

_WHERE = {
    "holdfast.app.handle": ("TaskHandle",),
    "holdfast.app.loading": ("App",),
    "holdfast.app.holdfast": ("Holdfast",),
    "holdfast.app.open": ("open",),
    "holdfast.core.effect": ("Fenced", "Idempotent", "Keyed", "Queryable", "Read", "Transactional", "Unrepeatable"),
    "holdfast.core.mail": ("Letter",),
    "holdfast.errors": (
        "ApprovalNotFound",
        "Busy",
        "DoneWithOtherArguments",
        "GateRefused",
        "HoldfastError",
        "JournalStopped",
        "KeyReused",
        "MessageConflict",
        "ModelRefused",
        "NoSchema",
        "NotDurable",
        "NotNow",
        "NotSent",
        "NotSettleable",
        "Refused",
        "RequestConflict",
        "ResultErased",
        "ResultNotKept",
        "ScopeBusy",
        "ScratchNotKept",
        "StepFailed",
        "StepSkipped",
        "TaskCancelled",
        "TaskFailed",
        "TaskParked",
        "TaskUnfinished",
        "ToolFailed",
    ),
    "holdfast.runtime.agent.agent": ("Agent", "Answer", "Conversation"),
    "holdfast.runtime.tool.mail_tool": ("send_mail",),
    "holdfast.runtime.tool.schema": ("Field",),
    "holdfast.runtime.gate.gate": ("Above", "Gate", "Limit"),
    "holdfast.host.log": ("Log",),
    "holdfast.runtime.models.endpoint": ("Endpoint",),
    "holdfast.runtime.models.endpoints": ("Endpoints",),
    "holdfast.runtime.models.model": ("Model", "Price"),
    "holdfast.runtime.models.reply": ("Reply", "Restarted", "TextDelta", "ToolCall", "Usage"),
    "holdfast.runtime.step.plan": ("Plan", "PlanItem"),
    "holdfast.runtime.agent.remembering": ("recall", "remember"),
    "holdfast.runtime.task.mail_task": ("on_mail",),
    "holdfast.runtime.task.run": ("Approval", "Run"),
    "holdfast.runtime.task.scope": ("Scope",),
    "holdfast.runtime.scratch.scratch": ("Scratch",),
    "holdfast.layout.engine_settings": ("Settings",),
    "holdfast.runtime.task.talk": ("Talk",),
    "holdfast.runtime.task.task": ("TaskType", "task"),
    "holdfast.runtime.tool.tool": ("Absent", "Apply", "Call", "Found", "Many", "Tool", "Unsure", "tool"),
}
_NAMES = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Above",
    "Absent",
    "Agent",
    "Answer",
    "App",
    "Apply",
    "Approval",
    "ApprovalNotFound",
    "Busy",
    "Call",
    "Conversation",
    "DoneWithOtherArguments",
    "Endpoint",
    "Endpoints",
    "Fenced",
    "Field",
    "Found",
    "Gate",
    "GateRefused",
    "Holdfast",
    "HoldfastError",
    "Idempotent",
    "JournalStopped",
    "KeyReused",
    "Keyed",
    "Letter",
    "Limit",
    "Log",
    "Many",
    "MessageConflict",
    "Model",
    "ModelRefused",
    "NoSchema",
    "NotDurable",
    "NotNow",
    "NotSent",
    "NotSettleable",
    "Plan",
    "PlanItem",
    "Price",
    "Queryable",
    "Read",
    "Refused",
    "Reply",
    "RequestConflict",
    "Restarted",
    "ResultErased",
    "ResultNotKept",
    "Run",
    "Scope",
    "ScopeBusy",
    "Scratch",
    "ScratchNotKept",
    "Settings",
    "StepFailed",
    "StepSkipped",
    "Talk",
    "TaskCancelled",
    "TaskFailed",
    "TaskHandle",
    "TaskParked",
    "TaskType",
    "TaskUnfinished",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolFailed",
    "Transactional",
    "Unrepeatable",
    "Unsure",
    "Usage",
    "on_mail",
    "open",
    "recall",
    "remember",
    "send_mail",
    "task",
    "tool",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from holdfast.host.version import find_version

        return find_version()
    module = _NAMES.get(name)
    if module is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
