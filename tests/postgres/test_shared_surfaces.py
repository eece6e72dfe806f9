"""The register of an agent whose journal is in PostgreSQL: shared, on no standby, with the hosts that are alive."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.core.clock import SystemClock
from holdfast.core.surfaces import Verdict
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.layout.agent_home import load_home
from holdfast.surfaces.register import Register, look, opened_journal
from holdfast_proofs.support.postgres import Server


@holdfast.task(name="rest")
async def rest(run: holdfast.Run) -> None:
    """Nothing: its worker only has to be alive."""


async def test_two_hosts_on_one_journal(server: Server, place: PostgresPlace, tmp_path: Path) -> None:
    url = f"{server.url()}&schema={place.schema}"
    for name in ("one", "two"):
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "holdfast.toml").write_text(f'agent = "ada"\n[journal]\nurl = "{url}"\n')
    home = load_home(tmp_path / "one")

    async def looked() -> Register:
        async with opened_journal(home) as opened:
            assert opened is not None
            return await look(home, opened, now_ms=SystemClock().wall_ms())

    async with holdfast.open(url, home=tmp_path / "one", tasks=[rest]):
        found = await looked()
        gates = {gate.id: gate for gate in found.level.gates}
        assert gates["shared-journal"].ok
        assert gates["instances"].why == "hosts with a live worker: 1"
        (tmp_path / "two" / "keys.json").touch(0o600)
        (tmp_path / "two" / "keys.json").write_bytes((tmp_path / "one" / "keys.json").read_bytes())
        async with holdfast.open(url, home=tmp_path / "two", tasks=[rest]):
            found = await looked()
    gates = {gate.id: gate for gate in found.level.gates}
    assert gates["instances"].ok
    assert gates["disk"].ok, "its state is on a server, whatever the folder is on"
    rows = {one.id: one for one in found.surfaces}
    assert (rows["journal"].owner, rows["journal"].domain) == ("the database", url)
    assert rows["journal"].verdict is Verdict.UNCOVERED, "no standby, and no backup"
    assert "2 hosts" in rows["workers"].holds
