"""Logs that other programs made, valid and broken: our parts come to the suites' verdicts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import SODIUM
from foreign_logs import Refused, check_plc, check_webvh
from suites import FOLDER

from holdfast.identity.log.log import accept_line
from holdfast.identity.records.signed import Refusal

WEBVH = sorted(FOLDER.glob("webvh/*/*/did.jsonl"))
PLC = sorted(FOLDER.glob("plc/*/*.json"))
absent = pytest.mark.skipif(not WEBVH, reason=f"the public suites are not in {FOLDER}")


@absent
@pytest.mark.parametrize("path", WEBVH, ids=[str(path.parts[-3]) for path in WEBVH])
def test_a_webvh_log_has_the_verdict_of_its_suite(path: Path) -> None:
    lines = path.read_text().splitlines()
    beside = path.with_name("did-witness.json")
    witnessed = json.loads(beside.read_text() if beside.is_file() else "[]")
    expected = json.loads(path.with_name("resolutionResult.json").read_text())
    if expected["didDocument"] is None:  # `witness-update` too: the old witnesses did not agree
        with pytest.raises(Refused):
            check_webvh(lines, witnessed)
    else:
        assert check_webvh(lines, witnessed)["id"] == expected["didDocument"]["id"]
    for line in lines:  # and none of it can be taken for a record of ours
        assert isinstance(accept_line(None, line.encode(), port=SODIUM), Refusal)


@absent
@pytest.mark.parametrize("path", PLC, ids=[path.stem for path in PLC])
def test_a_plc_log_nullifies_what_its_suite_says(path: Path) -> None:
    log = json.loads(path.read_text())
    expected = [one["nullified"] for one in log]
    if path.parent.name == "invalid":
        with pytest.raises(Refused):
            check_plc(log)
    else:
        assert check_plc(log) == expected


@absent
def test_both_suites_are_there(measured: Callable[[str], None]) -> None:
    results = [path.with_name("resolutionResult.json").read_text() for path in WEBVH]
    negative = sum(json.loads(text)["didDocument"] is None for text in results)
    measured(f"did:webvh: {len(WEBVH)} logs, {negative} of them broken on purpose, no deviation")
    measured(f"did:plc: {len(PLC)} logs, no deviation")
    assert len(WEBVH) >= 19
    assert len(PLC) >= 10
