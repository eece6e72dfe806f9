"""Every error of Holdfast, one file per room; the tree of all of them is drawn in base.py. Imports nothing of ours.

Use it as `from holdfast.errors import JournalBusy`: every name of the files below is a name of this package. They are
loaded at the first use of a name that is not in base.py, so that `holdfast --help` does not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.errors.base import *

if TYPE_CHECKING:
    from holdfast.errors.agent import *
    from holdfast.errors.backup import *
    from holdfast.errors.host import *
    from holdfast.errors.identity import *
    from holdfast.errors.instances import *
    from holdfast.errors.journal import *
    from holdfast.errors.model import *
    from holdfast.errors.relay import *
    from holdfast.errors.runtime import *
    from holdfast.errors.step import *

_ROOMS = ("agent", "backup", "host", "identity", "instances", "journal", "model", "relay", "runtime", "step")


def __getattr__(name: str) -> object:
    if name == "__all__":
        return __dir__()
    if not name.startswith("__"):
        _load()
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    _load()
    return sorted(name for name in globals() if name[0].isupper())


def _load() -> None:
    for room in _ROOMS:
        found = vars(import_module(f"{__name__}.{room}"))
        globals().update({key: value for key, value in found.items() if not key.startswith("_")})
