"""The public test suites: our few rows, and the whole files where they are at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# Any: JSON of other people's suites.

SELECTION: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "selection.json").read_bytes())
FOLDER = Path(os.environ.get("HOLDFAST_VECTORS") or Path(__file__).parents[3] / "shared" / "vectors")


def wycheproof() -> list[dict[str, Any]]:
    rows = list(SELECTION["wycheproof"]["rows"])
    for group in _file("ed25519/wycheproof.json", {"testGroups": []})["testGroups"]:
        rows += [{**row, "id": row["tcId"], "key": group["publicKey"]["pk"]} for row in group["tests"]]
    return rows


def cctv() -> list[dict[str, Any]]:
    return [*SELECTION["cctv"]["rows"], *_file("ed25519/cctv.json", [])]


def reference() -> list[dict[str, str]]:
    rows = list(SELECTION["ed25519"]["rows"])
    path = FOLDER / "ed25519" / "sign.input"
    for line in path.read_text("ascii").splitlines() if path.is_file() else ():
        secret, key, message, signed = line.split(":")[:4]
        rows.append({"seed": secret[:64], "key": key, "msg": message, "sig": signed[:128]})
    return rows


def jcs() -> list[dict[str, str]]:
    rows = list(SELECTION["jcs"]["rows"])
    for path in sorted((FOLDER / "jcs" / "input").glob("*.json")):
        output = (FOLDER / "jcs" / "output" / path.name).read_text("utf-8").rstrip("\n")
        rows.append({"name": path.name, "input": path.read_text("utf-8"), "output": output})
    return rows


def bech32(form: str, verdict: str) -> list[bytes]:
    rows = [bytes.fromhex(text) for text in SELECTION["bech32"][form][verdict]]
    whole = _file("bech32/vectors.json", {form: {verdict: []}})[form][verdict]
    return rows + [bytes.fromhex(row["hex"]) for row in whole]


def _file(name: str, otherwise: Any) -> Any:
    path = FOLDER / name
    return json.loads(path.read_bytes()) if path.is_file() else otherwise
