"""What a mail carries so that it is known again: the effect key, and the provider's own id."""

from __future__ import annotations

import re

MARK = "holdfast_key"  # the name of the custom argument

_OF_ONE = re.compile(r"\.(?:filter|recv).*\Z", re.DOTALL)


def message_id(text: str) -> str:
    """The request's id in the id of one message: `ID.filter...` or `ID.recvd-...`, then a server
    and a recipient."""
    return _OF_ONE.sub("", text)
