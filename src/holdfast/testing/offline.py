"""An agent offline: its folder, a scripted model, and far ends that count.

An example's folder holds `app.py` with `app`, `request.json` with what is submitted, and
`model.json`, the script of the offline model. Its far ends are found by environment variables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.downstream.process import Kind
from holdfast.downstream.process import start_blocking as start_far_end
from holdfast.errors import BadInput
from holdfast.testing.model_server.process import start_blocking as start_model
from holdfast.testing.model_server.script import parse_script

KEY = "sk-offline-0001"
SECRET = "provider"  # the handle of the model's key is secret://provider
FAR_ENDS: dict[str, Kind] = {"PAYMENT_URL": "payment", "MAIL_URL": "mail", "SERVICE_URL": "keyed"}
MODEL_URL = "MODEL_URL"


class Far(msgspec.Struct, frozen=True, kw_only=True):
    """A far end that counts."""

    variable: str
    kind: Kind
    port: int
    pid: int


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a program of a trial needs to know."""

    example: str  # its folder
    folder: str  # for the journals of the trials
    variables: dict[str, str]
    far_ends: tuple[Far, ...]

    @property
    def app(self) -> str:
        return f"{self.example}/app.py:app"

    @property
    def request(self) -> dict[str, object]:
        return decode_json((Path(self.example) / "request.json").read_bytes())


@contextlib.contextmanager
def set_up(example: Path, folder: Path) -> Generator[Stage]:
    """Start the far ends and the model of the example."""
    script = example / "model.json"
    if not (example / "app.py").is_file() or not script.is_file():
        raise BadInput(f"{example} is no example of an agent", hint="it has app.py, model.json, request.json")
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(start_model(parse_script(script.read_bytes())))
        variables, far_ends = {MODEL_URL: model.url}, list[Far]()
        for variable, kind in FAR_ENDS.items():
            far = stack.enter_context(start_far_end(kind))
            variables[variable] = far.url
            far_ends.append(Far(variable=variable, kind=kind, port=far.port, pid=far.pid))
        yield Stage(example=str(example.resolve()), folder=str(folder), variables=variables, far_ends=tuple(far_ends))
