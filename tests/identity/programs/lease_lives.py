"""An instance and its arbiter, killed and failed at every call: `lease_lives.py ROOT [EVERY]`.

The act is the life of a lease: granted, renewed, granted anew after a reboot. Wherever it is cut
short, the same folder gets the lease again, no incarnation is granted twice, nothing is frozen.
Prints what vault_lives.py prints, whose trials these are.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import vault_lives
from quick_agent import Agent, make_agent

from holdfast.core.clock import SystemEntropy
from holdfast.host.private_files import write_atomically
from holdfast.identity.lease.arbiter import FolderArbiter
from holdfast.identity.lease.instance import WaitReason
from holdfast.identity.lease.lease_holder import InstanceFile, LeaseHeld, LeaseHolder, LeaseNotHeld
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.statements.claim import LEASE_MS
from holdfast.testing.clocks import ManualClock

ROOT = digest_of(b"state")


def holder(root: Path, clock: ManualClock, instance: str = "instance") -> LeaseHolder:
    agent = Agent(folder=root / "home", vault_folder=root / "vault", second=root / "second")
    journal = root / "incarnation"  # what is raised, in the place of a journal
    return LeaseHolder(
        file=InstanceFile(agent.folder / instance, id=agent.log.id, clock=clock, entropy=SystemEntropy()),
        speaker=agent.speaker(clock),
        arbiter=FolderArbiter(root / "arbiter", clock=clock),
        clock=clock,
        incarnation=lambda: int(journal.read_bytes()),
        raise_incarnation=lambda e: write_atomically(journal, str(e).encode()),
        state_root=lambda: ROOT,
    )


class Lease(vault_lives.Life):
    def prepare(self, root: Path) -> None:
        make_agent(root)
        write_atomically(root / "incarnation", b"1")

    def act(self, root: Path) -> None:
        clock = ManualClock(boot_ms=10 * LEASE_MS, boot_id="boot-1")
        first = holder(root, clock)
        first.turn()
        first.turn()
        clock.reboot(boot_id="boot-2")
        clock.advance(2 * LEASE_MS)
        holder(root, clock).turn()

    def check(self, root: Path) -> None:
        clock = ManualClock(boot_ms=2 * LEASE_MS, boot_id="boot-3")
        first = holder(root, clock)
        found = first.turn()
        assert isinstance(found, LeaseHeld), found
        assert found.e == int((root / "incarnation").read_bytes()) <= 3, found
        again = first.turn()
        assert isinstance(again, LeaseHeld), again
        assert again.e == found.e, (found, again)
        shutil.copytree(root / "home" / "instance", root / "home" / "copy")
        twin = holder(root, clock, "copy").turn()
        assert isinstance(twin, LeaseNotHeld), twin
        assert twin.why is WaitReason.COPY, twin

    def finish(self, root: Path) -> None:
        pass


if __name__ == "__main__":
    vault_lives.LIVES["lease"] = Lease
    vault_lives.main("lease", Path(sys.argv[1]), every=int([*sys.argv, "1"][2]))
