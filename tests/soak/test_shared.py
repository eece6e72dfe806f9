"""Over a journal in PostgreSQL, each in small: the soak, breaking connections, a lost region, a lost instance."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.binder import KEYS
from holdfast.core.clock import SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast_proofs.soak.judge import judge
from holdfast_proofs.soak.load import Plan, run_load
from holdfast_proofs.soak.site import Host, Site
from holdfast_proofs.support.postgres import NEWEST, started

PLAN = Plan(tasks=24, steps=5, workers=2, concurrency=8, backlog=24, kill_every_s=0.5, kills_max=2, lost_replies=0.1)
ROOT = os.geteuid() == 0 and shutil.which("ip") is not None


def proven(module: str, *words: str) -> dict[str, Any]:
    """The figures of a proof that is green."""
    command = (sys.executable, "-m", f"holdfast_proofs.{module}", "--json", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_workers_of_two_hosts_are_killed(tmp_path: Path) -> None:
    load_or_create(tmp_path / KEYS, journal_exists=False, entropy=SystemEntropy())
    hosts: list[Host] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir(mode=0o700)
        shutil.copy(tmp_path / KEYS, tmp_path / name / KEYS)
        hosts.append(Host(folder=tmp_path / name))
    with started(NEWEST) as server:
        site = Site(journal=JournalAddress(folder=tmp_path, url=f"{server.url()}&schema=soak"), hosts=hosts)
        ran = asyncio.run(run_load(PLAN, site, lambda _line: None))
        verdict = asyncio.run(judge(PLAN, ran, site))
    assert verdict.findings == []
    assert verdict.green
    assert verdict.effects == PLAN.tasks * PLAN.steps
    assert ran.kills == 2


@pytest.mark.slow
def test_connections_and_pgbouncer_break_under_load() -> None:
    figures = proven("failovers.breaks", "--connections", "10", "--poolers", "1", "--tasks", "16", "--workers", "2")
    assert figures["connections"]["breaks"] >= 10
    assert figures["poolers"]["breaks"] == 1


@pytest.mark.slow
@pytest.mark.skipif(not ROOT, reason="regions are network namespaces, which only root can make")
def test_a_region_is_lost() -> None:
    figures = proven("failovers.regions", "--rounds", "1", "--rounds-only", "--tasks", "6", "--lease", "1.5")
    assert figures["rounds"] == 1
    assert figures["sent_after"] == figures["written_after"] == 0


@pytest.mark.slow
@pytest.mark.skipif(not ROOT, reason="hosts are network namespaces, which only root can make")
def test_an_instance_is_cut_off_and_another_continues() -> None:
    figures = proven(
        "takeovers", "--rounds", "1", "--kind", "cut", "--instances", "2", "--bare", "--lease", "1.5", "--backlog", "8"
    )
    assert figures["lost"]["rounds"] == {"cut": 1}
    assert figures["lost"]["taken"] >= 1
