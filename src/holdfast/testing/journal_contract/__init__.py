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
from holdfast.testing.journal_contract.claims import Claims
from holdfast.testing.journal_contract.deaths import Deaths
from holdfast.testing.journal_contract.facts import Facts
from holdfast.testing.journal_contract.remarks import Remarks
from holdfast.testing.journal_contract.sessions import Sessions
from holdfast.testing.journal_contract.submissions import Submissions
from holdfast.testing.journal_contract.upkeep import Upkeep
from holdfast.testing.journal_contract.world import Administered, World

__all__ = ["Administered", "JournalContract", "World"]


class JournalContract(Submissions, Claims, Deaths, Sessions, Appends, Facts, Upkeep, Remarks, Admin):
    """Inherit, and supply the `world` fixture."""
