"""The suite that every journal passes: each promise of `holdfast.journal.contract`, tried.

A journal joins by supplying one fixture, a `World`:

    class TestMyJournal(JournalContract):
        @pytest.fixture
        async def world(self, tmp_path): ...

The tests hold two or more handles on one journal, each standing for a process, and a clock that they turn by hand.
Where journals may differ, `Capabilities` says so and the test asks for the refusal instead; nothing is skipped.
"""

from holdfast.testing.journal_contract.admin import Admin
from holdfast.testing.journal_contract.appends import Appends
from holdfast.testing.journal_contract.builds import Builds
from holdfast.testing.journal_contract.claims import Claims, Deaths
from holdfast.testing.journal_contract.hosts import Hosts
from holdfast.testing.journal_contract.sessions import Sessions
from holdfast.testing.journal_contract.submissions import Facts, Submissions
from holdfast.testing.journal_contract.upkeep import Remarks, Upkeep
from holdfast.testing.journal_contract.world import Administered, SeveralHosts, World

__all__ = ["Administered", "JournalContract", "SeveralHosts", "World"]


class JournalContract(Submissions, Claims, Builds, Deaths, Sessions, Hosts, Appends, Facts, Upkeep, Remarks, Admin):
    """Inherit, and supply the `world` fixture."""
