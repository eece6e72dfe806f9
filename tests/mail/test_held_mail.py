"""When received mail may be deleted at its relays."""

from __future__ import annotations

import pytest

from holdfast.app.mail.held_mail import Received, secured_up_to

GOT = (Received(0.0, 10), Received(100.0, 20), Received(130.0, 30))


@pytest.mark.parametrize(
    ("now_s", "on_standby", "covered", "mark"),
    [
        (130.0, True, 0, 30),  # on the standby: at once
        (119.0, False, None, 0),  # no place: not before 2 x watch_s
        (120.0, False, None, 10),
        (250.0, False, None, 30),
        (250.0, False, 0, 0),  # a place, and no verified snapshot: however long that takes
        (250.0, False, 15, 15),  # the snapshot covers records up to 15: letter 10 is secured, 20 is not
        (120.0, False, 99, 10),  # covered, and too soon
        (250.0, False, 99, 30),
    ],
)
def test_secured_up_to(now_s: float, on_standby: bool, covered: int | None, mark: int) -> None:
    assert secured_up_to(GOT, now_s=now_s, watch_s=60.0, on_standby=on_standby, covered=covered) == mark


def test_nothing_received_is_nothing_secured() -> None:
    assert secured_up_to((), now_s=1e9, watch_s=60.0, on_standby=True, covered=None) == 0
