"""deploy/compose.yml: what it says about our image and our commands is so, and its two workers run side by side.

No container tool is needed, so none is tried here: the commands run as they are, over a server of the tests.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import build_parser
from holdfast.core.journal_address import parse_journal_url
from holdfast_proofs.support.command_line import Worker, environment
from holdfast_proofs.support.postgres import SUPPORTED, Server

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE, IMAGE = DEPLOY / "compose.yml", DEPLOY / "Containerfile"
SAMPLE = Path(__file__).parents[1] / "integration" / "cli" / "sample_app.py"
YAML = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))"


class Reader:
    """The part of YAML that the file uses: maps and lists by indentation, `[...]` and `{}` as JSON, anchors of maps."""

    def __init__(self, text: str) -> None:
        kept = (re.sub(r"\s+#.*$|^#.*$", "", line).rstrip() for line in text.splitlines())
        self._lines = [(len(line) - len(line.lstrip()), line.strip()) for line in kept if line]
        self._anchors: dict[str, Any] = {}

    def read(self, indent: int = 0) -> Any:
        made: dict[str, Any] | list[Any] = [] if self._lines[0][1].startswith("- ") else {}
        while self._lines and self._lines[0][0] == indent:
            _, line = self._lines.pop(0)
            if isinstance(made, list):
                made.append(self._value(line.removeprefix("- ")))
                continue
            key, colon, rest = line.partition(":")
            assert colon, line
            assert key not in made, line
            rest, anchor = rest.strip(), ""
            if rest.startswith("&"):
                rest, anchor = "", rest[1:]
            made[key] = self._value(rest) if rest else self.read(self._lines[0][0])
            if anchor:
                self._anchors[anchor] = made[key]
        assert not self._lines or self._lines[0][0] < indent, self._lines[0]
        return made

    def _value(self, text: str) -> Any:
        if text.startswith("*"):
            return self._anchors[text[1:]]
        return json.loads(text) if text[0] in '["{' or text.isdecimal() else text


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return Reader(FILE.read_text()).read()


def workers(composed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (one for name, one in composed["services"].items() if name.startswith("worker"))


def test_a_real_parser_reads_the_same(composed: dict[str, Any]) -> None:
    for program in (sys.executable, "/usr/bin/python3"):
        done = subprocess.run([program, "-c", YAML, FILE], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            assert json.loads(done.stdout) == composed


def test_it_agrees_with_the_image_and_the_command_line(composed: dict[str, Any]) -> None:
    image = IMAGE.read_text()
    postgres = composed["services"]["postgres"]
    assert int(postgres["image"].rpartition(":")[2]) in SUPPORTED
    (volume,) = re.findall(r"^VOLUME (\S+)$", image, re.MULTILINE)
    (tag,) = re.findall(r"^#.* build .*-t (\S+)", image, re.MULTILINE)
    (stop_s,) = set(re.findall(r"--stop-timeout (\d+)", image))
    (user,) = re.findall(r"^USER (\d+)", image, re.MULTILINE)
    assert 'ENTRYPOINT ["holdfast"]' in image
    assert f"chown {user} secrets/pgpass" in FILE.read_text()
    assert len(list(workers(composed))) == 2
    for worker in workers(composed):
        assert (FILE.parent / worker["build"]["context"] / worker["build"]["dockerfile"]).resolve() == IMAGE
        assert (worker["image"], worker["stop_grace_period"]) == (tag, f"{stop_s}s")
        args = build_parser(worker["command"]).parse_args(worker["command"])
        url = parse_journal_url(args.journal)  # with a password in it, this would fail
        assert f"agent:{volume}" in worker["volumes"]
        assert (args.home, url) == ([volume], args.journal)
        assert f":{args.health_port}/" in worker["healthcheck"]["test"][-1]
        own, name = postgres["environment"], url.partition("?")[0]
        assert name == f"postgresql://{own['POSTGRES_USER']}@postgres/{own['POSTGRES_DB']}"
        assert re.findall(r"passfile=/run/secrets/(.+)", url) == worker["secrets"]


def test_secrets_are_files_and_never_in_an_environment(composed: dict[str, Any]) -> None:
    for name, service in composed["services"].items():
        for variable, value in service.get("environment", {}).items():
            secret = re.search(r"PASSW|SECRET|TOKEN|KEY", variable)
            assert not secret or (variable.endswith("_FILE") and value.startswith("/run/secrets/")), (name, variable)
        assert set(service["secrets"]) <= composed["secrets"].keys()
    assert all(set(one) == {"file"} for one in composed["secrets"].values())


def test_its_workers_start_side_by_side_in_an_empty_volume(
    composed: dict[str, Any], server: Server, tmp_path: Path
) -> None:
    """Both make the journal and its keys at the same moment."""
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o700)
    app = shutil.copy(SAMPLE, tmp_path / "app.py")
    url = f"{server.url()}&passfile={tmp_path / 'pgpass'}&schema=composed"
    given = {"--home": str(volume), "--journal": url, "--health-port": "0"}
    started: list[Worker] = []
    try:
        for one in workers(composed):
            words = [f"{app}:tasks" if word.startswith("/srv/app/") else word for word in one["command"]]
            for option, value in given.items():
                words[words.index(option) + 1] = value
            started.append(Worker(tmp_path, tuple(words), {**environment(volume), "HOLDFAST_JOURNAL": ""}))
        for worker in started:
            worker.wait_event("serving")
        assert [worker.stop() for worker in started] == [0, 0]
    finally:
        for worker in started:
            worker.close()
