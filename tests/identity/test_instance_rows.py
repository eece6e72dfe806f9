"""What people see of the enrolled instances: presence, what the doctor finds, which one was lost."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from cast import key

from holdfast.app.doctor import Level
from holdfast.app.instances.examine import findings_of
from holdfast.app.instances.presence import InstanceList, rows_of
from holdfast.app.instances.standing import Seen, SeenHost, lost_instances
from holdfast.identity.statements.certificate import Role
from holdfast.identity.statements.roster import Enrolled
from holdfast.journal.contract import SessionRow

NORTH, SOUTH = (Enrolled(name=name, key=key(name).public, role=Role.PRIMARY, host=name) for name in ("north", "south"))
SEEN = Seen(
    bound={
        NORTH.key: SeenHost(host="h1", who="alpha:/ada", at=1),
        SOUTH.key: SeenHost(host="h2", who="beta:/ada", at=1),
    }
)


def session(host: str, *, alive: bool, died: bool = False, begun_ms: int = 1) -> SessionRow:
    return SessionRow(
        session_id=f"{host}-{begun_ms}",
        worker=host,
        pid=1,
        boot_id="",
        lease_until_boot_ms=0,
        begun_ms=begun_ms,
        ended=not alive,
        alive=alive,
        tasks=2,
        host_id=host,
        died=died,
    )


def test_an_instance_is_lost_when_its_last_worker_was_found_dead_and_none_lives() -> None:
    def lost(*sessions: SessionRow) -> list[str]:
        return [one.name for one, _ in lost_instances((NORTH, SOUTH), SEEN, sessions)]

    alive = session("h1", alive=True)
    assert lost(alive, session("h2", alive=False, died=True)) == ["south"]
    assert lost(alive, session("h2", alive=False)) == []  # it ended by itself
    assert lost(alive, session("h2", alive=False, died=True), session("h2", alive=True, begun_ms=2)) == []
    assert lost(alive, session("h2", alive=False, died=True), session("h2", alive=False, begun_ms=2)) == []
    assert lost(alive, session("h3", alive=False, died=True)) == []  # nobody's


def test_presence_and_lag_come_from_the_shared_journal() -> None:
    rows = rows_of((NORTH, SOUTH), SEEN, [session("h1", alive=True)], {"h1": 0, "h2": 7}, own=NORTH.key, shared=True)
    assert [(one.name, one.presence, one.tasks, one.lag, one.here) for one in rows] == [
        ("north", "alive", 2, 0, True),
        ("south", "away", 0, 7, False),
    ]
    unseen = rows_of((SOUTH,), Seen(), [], {}, own=None, shared=True)[0]
    assert (unseen.presence, unseen.lag) == ("unseen", None)
    assert rows_of((SOUTH,), Seen(), [], {}, own=None, shared=False)[0].presence == ""


def listed(**changes: object) -> InstanceList:
    rows = rows_of(
        (NORTH, SOUTH), SEEN, [session("h1", alive=True), session("h2", alive=True)], {}, own=None, shared=True
    )
    whole = InstanceList(
        standing="primary", text="", version=(0, 0, 2), forked=False, instances=tuple(rows), unknown=()
    )
    return msgspec.structs.replace(whole, **changes)


def test_the_doctor_names_each_trouble_and_nothing_else() -> None:
    def texts(found: InstanceList, level: Level = Level.WARNING) -> str:
        return " ".join(one.text for one in findings_of(found) if one.level is level)

    assert texts(listed(), Level.OK) == "2 enrolled, 2 with a live worker"
    assert findings_of(listed(standing="alone")) == []
    assert "not enrolled" in texts(listed(standing="copy", text="it is not enrolled"), Level.DAMAGE)
    assert "beta:/x" in texts(listed(unknown=("beta:/x",)))
    assert "at the same time" in texts(listed(forked=True))
    one, two = listed().instances
    replace = msgspec.structs.replace
    assert "no host has used its key" in texts(listed(instances=(one, replace(two, presence="unseen", where=""))))
    (away,) = findings_of(listed(instances=(one, replace(two, presence="away"))))
    assert "no live worker" in away.text
    assert "`holdfast instance remove south`" in away.mend
    assert "yield" not in away.mend  # which a lost host cannot run
    assert "fail together" in texts(listed(instances=(one, replace(two, where="alpha:/other"))))
    assert "none acts" in texts(listed(instances=(replace(one, role="standby"), replace(two, role="standby"))))
