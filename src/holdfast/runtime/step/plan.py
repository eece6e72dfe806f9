"""The plan of a task: what is to be done, what is done, and what came of it.

Each change is one record (a note `plan`) that holds the changed items alone, as they are then: a plan of n items costs
n records and not n times n. The plan of any moment is the fold of the notes up to it; every step says how many changes
came before it (`plan` in its body), so that each checkpoint names its plan.

In a task's own code a change takes an ordinal, like everything that a replay must see again. In an agent's loop the
model changes it, through a built-in tool, and the note is at the call's own ordinal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from holdfast.core.values import checked
from holdfast.errors import BadInput
from holdfast.journal.bodies import PlanItem, PlanNote, PlanState
from holdfast.journal.records import TaskView

PLAN = "plan"
ITEMS_MAX = 1_000
TITLE_CHARS_MAX = 1_000
RESULT_CHARS_MAX = 10_000


def changes_of(view: TaskView) -> int:
    """How many changes there were."""
    return sum(note.what == PLAN for note in view.notes.values())


class Plan:
    """The plan of a task, to read and to change. Made by `run.plan`."""

    __slots__ = ("_items", "_record")

    def __init__(self, items: dict[int, PlanItem], record: Callable[[PlanNote], None]) -> None:
        self._items = items  # shared by all branches of a task
        self._record = record

    @property
    def items(self) -> tuple[PlanItem, ...]:
        return tuple(self._items[number] for number in sorted(self._items))

    def add(self, *titles: str) -> list[PlanItem]:
        """Add items at the end, pending."""
        return self._change(added(self.items, titles))

    def set(
        self,
        item: PlanItem | int,
        state: PlanState | str | None = None,
        *,
        result: str | None = None,
        title: str | None = None,
    ) -> PlanItem:
        """Change an item: its state, what came of it, or its words."""
        number = item if isinstance(item, int) else item.number
        wanted = {"number": number, "state": state, "result": result, "title": title}
        change = {name: value for name, value in wanted.items() if value is not None}
        return self._change(changed(self.items, [change]))[0]

    def _change(self, items: list[PlanItem]) -> list[PlanItem]:
        self._record(PlanNote(items))
        self._items |= {item.number: item for item in items}
        return items


def added(items: Sequence[PlanItem], titles: Iterable[object]) -> list[PlanItem]:
    """New items behind these. Raises BadInput."""
    first = 1 + max((item.number for item in items), default=0)
    made = [PlanItem(number=first + i, title=_title(title)) for i, title in enumerate(titles)]
    if not made:
        raise BadInput("plan: give at least one item")
    if len(items) + len(made) > ITEMS_MAX:
        raise BadInput(f"plan: a plan may have at most {ITEMS_MAX} items")
    return made


def changed(items: Sequence[PlanItem], changes: Iterable[object]) -> list[PlanItem]:
    """These items after the changes: {"number", "state", "result", "title"}. Raises BadInput."""
    known = {item.number: item for item in items}
    done: dict[int, PlanItem] = {}
    for change in changes:
        if not isinstance(change, Mapping):
            raise BadInput("plan: a change must be an object with a number and a state")
        fields = cast("Mapping[str, object]", change)
        number = fields.get("number")
        before = known.get(number) if isinstance(number, int) else None
        if before is None:
            raise BadInput(f"plan: there is no item {number!r}")
        known[before.number] = done[before.number] = _changed(before, fields)
    if not done:
        raise BadInput("plan: give at least one change")
    return list(done.values())


def shown(items: Iterable[PlanItem]) -> str:
    """The plan in words."""
    lines = [
        f"{item.number}. [{item.state.value}] {item.title}" + f": {item.result}" * bool(item.result) for item in items
    ]
    return "\n".join(lines) or "the plan is empty"


SCHEMA: dict[str, object] = {
    "name": PLAN,
    "description": "Keep the plan of your work: add items, and say of each when it is begun, done "
    "or dropped, and what came of it. Returns the whole plan.",
    "parameters": {
        "type": "object",
        "properties": {
            "add": {"type": "array", "items": {"type": "string"}, "description": "new items"},
            "set": {
                "type": "array",
                "description": "changes to items that are there, by their number",
                "items": {
                    "type": "object",
                    "properties": {
                        "number": {"type": "integer"},
                        "state": {"type": "string", "enum": [state.value for state in PlanState]},
                        "result": {"type": "string"},
                    },
                    "required": ["number"],
                    "additionalProperties": False,
                },
            },
        },
        "additionalProperties": False,
    },
}


def by_model(items: Sequence[PlanItem], arguments: Mapping[str, object]) -> list[PlanItem]:
    """What a call of the built-in tool changes; nothing where it only looks. Raises BadInput."""
    new = cast("Sequence[object]", arguments.get("add") or ())
    made = added(items, new) if new else []
    changes = cast("Sequence[object]", arguments.get("set") or ())
    done = changed([*items, *made], changes) if changes else []
    return list({item.number: item for item in (*made, *done)}.values())


def _changed(before: PlanItem, fields: Mapping[str, object]) -> PlanItem:
    unknown = sorted(set(fields) - {"number", "state", "result", "title"})
    if unknown:
        raise BadInput(f"plan: unknown field {unknown[0]!r}")
    try:
        state = PlanState(str(fields.get("state", before.state)))
    except ValueError:
        states = ", ".join(PlanState)
        raise BadInput(f"plan: a state must be one of {states}") from None
    result = fields.get("result", before.result)
    if not isinstance(result, str) or len(result) > RESULT_CHARS_MAX:
        raise BadInput(f"plan: a result must be a text of at most {RESULT_CHARS_MAX:,} characters")
    checked(result, what="plan: result")
    title = _title(fields.get("title", before.title))
    return PlanItem(number=before.number, title=title, state=state, result=result)


def _title(title: object) -> str:
    if not isinstance(title, str) or not title.strip() or len(title) > TITLE_CHARS_MAX:
        raise BadInput(f"plan: an item must be a text of 1 to {TITLE_CHARS_MAX:,} characters")
    checked(title, what="plan: item")
    return title
