"""A url with several hosts: one that is gone must not cost every new connection its timeout."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.journal.postgres.place import Known, PostgresPlace


def asked(url: str, known: Known | None) -> tuple[object, object]:
    given = conninfo_to_dict(PostgresPlace.read(url).asking(known))
    return given.get("host"), given.get("port")


@pytest.mark.parametrize(
    ("known", "order"),
    [
        (None, ("a,b,c", "1,2,3")),
        (Known(("b", "2"), answers=True), ("b,a,c", "2,1,3")),
        (Known(("a", "1"), answers=False), ("b,c,a", "2,3,1")),
        (Known(("b", "9"), answers=True), ("a,b,c", "1,2,3")),
    ],
)
def test_the_host_that_answered_is_asked_first_and_a_lost_one_last(known: Known | None, order: tuple[str, str]) -> None:
    assert asked("postgresql://u@a:1,b:2,c:3/db", known) == order


@pytest.mark.parametrize("port", ["5", None])
def test_one_port_serves_all_hosts(port: str | None) -> None:
    url = f"postgresql://u@/db?host=a,b{'' if port is None else f'&port={port}'}"
    assert asked(url, Known(("a", port or "5432"), answers=False)) == ("b,a", port)


def test_a_single_host_stays_as_it_is() -> None:
    assert asked("postgresql://u@a/db", Known(("a", "5432"), answers=False)) == ("a", None)
