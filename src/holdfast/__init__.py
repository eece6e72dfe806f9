"""Holdfast keeps an AI agent alive through the loss of its process, disk, machine or region.

The public names and nothing else; each is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.app.handle import TaskHandle
    from holdfast.app.loading import App
    from holdfast.app.open import Holdfast, open  # noqa: A004 - the public name
    from holdfast.core.effect import (
        Fenced,
        Idempotent,
        Keyed,
        Queryable,
        Read,
        Transactional,
        Unrepeatable,
    )
    from holdfast.errors import (
        Busy,
        DoneWithOtherArguments,
        GateRefused,
        HoldfastError,
        KeyReused,
        MessageConflict,
        ModelRefused,
        NoSchema,
        NotDurable,
        NotSent,
        Refused,
        RequestConflict,
        ResultErased,
        ResultNotKept,
        ScratchNotKept,
        StepFailed,
        StepSkipped,
        TaskCancelled,
        TaskFailed,
        TaskParked,
        ToolFailed,
    )
    from holdfast.runtime.agent import Agent
    from holdfast.runtime.conversation import Answer, Conversation
    from holdfast.runtime.field import Field
    from holdfast.runtime.gate import Gate
    from holdfast.runtime.limits import Above, Limit
    from holdfast.runtime.log import Log
    from holdfast.runtime.models.endpoint import Endpoint
    from holdfast.runtime.models.endpoints import Endpoints
    from holdfast.runtime.models.model import Model
    from holdfast.runtime.models.port import Restarted, TextDelta
    from holdfast.runtime.models.price import Price
    from holdfast.runtime.models.reply import Reply, ToolCall, Usage
    from holdfast.runtime.plan import Plan, PlanItem
    from holdfast.runtime.remembering import recall, remember
    from holdfast.runtime.run import Approval, Run
    from holdfast.runtime.scope import Scope
    from holdfast.runtime.scratch import Scratch
    from holdfast.runtime.settings import Settings
    from holdfast.runtime.talk import Talk
    from holdfast.runtime.task import TaskType, task
    from holdfast.runtime.tool import Absent, Apply, Call, Found, Many, Tool, Unsure, tool

_WHERE = {
    "holdfast.app.handle": ("TaskHandle",),
    "holdfast.app.loading": ("App",),
    "holdfast.app.open": ("Holdfast", "open"),
    "holdfast.core.effect": (
        "Fenced", "Idempotent", "Keyed", "Queryable", "Read", "Transactional", "Unrepeatable",
    ),
    "holdfast.errors": (
        "Busy", "DoneWithOtherArguments", "GateRefused", "HoldfastError", "KeyReused",
        "MessageConflict", "ModelRefused", "NoSchema", "NotDurable", "NotSent",
        "Refused", "RequestConflict", "ResultErased", "ResultNotKept", "ScratchNotKept",
        "StepFailed", "StepSkipped", "TaskCancelled", "TaskFailed", "TaskParked", "ToolFailed",
    ),
    "holdfast.runtime.agent": ("Agent",),
    "holdfast.runtime.conversation": ("Answer", "Conversation"),
    "holdfast.runtime.field": ("Field",),
    "holdfast.runtime.gate": ("Gate",),
    "holdfast.runtime.limits": ("Above", "Limit"),
    "holdfast.runtime.log": ("Log",),
    "holdfast.runtime.models.endpoint": ("Endpoint",),
    "holdfast.runtime.models.endpoints": ("Endpoints",),
    "holdfast.runtime.models.model": ("Model",),
    "holdfast.runtime.models.port": ("Restarted", "TextDelta"),
    "holdfast.runtime.models.price": ("Price",),
    "holdfast.runtime.models.reply": ("Reply", "ToolCall", "Usage"),
    "holdfast.runtime.plan": ("Plan", "PlanItem"),
    "holdfast.runtime.remembering": ("recall", "remember"),
    "holdfast.runtime.run": ("Approval", "Run"),
    "holdfast.runtime.scope": ("Scope",),
    "holdfast.runtime.scratch": ("Scratch",),
    "holdfast.runtime.settings": ("Settings",),
    "holdfast.runtime.talk": ("Talk",),
    "holdfast.runtime.task": ("TaskType", "task"),
    "holdfast.runtime.tool": (
        "Absent", "Apply", "Call", "Found", "Many", "Tool", "Unsure", "tool",
    ),
}  # fmt: skip
_NAMES = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Above", "Absent", "Agent", "Answer", "App", "Apply", "Approval", "Busy", "Call",
    "Conversation", "DoneWithOtherArguments", "Endpoint", "Endpoints", "Fenced", "Field",
    "Found", "Gate", "GateRefused", "Holdfast", "HoldfastError", "Idempotent", "KeyReused",
    "Keyed", "Limit", "Log", "Many", "MessageConflict", "Model", "ModelRefused", "NoSchema",
    "NotDurable", "NotSent", "Plan", "PlanItem", "Price", "Queryable", "Read", "Refused",
    "Reply", "RequestConflict", "Restarted", "ResultErased", "ResultNotKept", "Run", "Scope",
    "Scratch", "ScratchNotKept", "Settings", "StepFailed", "StepSkipped", "Talk",
    "TaskCancelled", "TaskFailed", "TaskHandle", "TaskParked", "TaskType", "TextDelta", "Tool",
    "ToolCall", "ToolFailed", "Transactional", "Unrepeatable", "Unsure", "Usage", "open",
    "recall", "remember", "task", "tool",
]  # fmt: skip


def __getattr__(name: str) -> object:
    module = _NAMES.get(name)
    if module is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
