"""What is mutated, and which tests must notice: quick ones first, wider ones for the rest."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from holdfast_proofs.mutants.operators import Mutant

EXPLAINED = Path(__file__).with_name("explained.toml")
SEEDS = 60  # simulated worlds for what the wider tests have not killed either

_CONTRACT = "tests/contract/test_memory_journal.py"
_RECORDS = "tests/unit/test_records.py"
_STEP = "tests/unit/test_step.py"
_TRANSITIONS = "tests/unit/test_transitions.py"
_ATTACKS = "tests/identity/test_attacks.py"
_LOG = "tests/identity/test_log.py"
_INSTANCES = "tests/identity/test_instances.py"
_WITNESSES = "tests/identity/test_witnesses.py"
_SCHEDULES = "tests/identity/test_schedules.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    name: str  # below holdfast
    quick: tuple[str, ...]
    wide: tuple[str, ...] = ()
    simulated: bool = True

    @property
    def path(self) -> Path:
        return Path("src/holdfast") / f"{self.name.replace('.', '/')}.py"

    @property
    def full_name(self) -> str:
        return f"holdfast.{self.name}"


MODULES: dict[str, Module] = {
    module.name: module
    for module in (
        Module(name="core.step", quick=(_TRANSITIONS,), wide=(_RECORDS, _STEP)),
        Module(name="core.resume", quick=("tests/unit/test_resumer.py",), wide=(_STEP,)),
        Module(
            name="core.ids",
            quick=("tests/unit/test_ids.py", "tests/docs/test_vectors.py"),
            wide=("tests/unit/test_decisions.py",),
            simulated=False,
        ),
        Module(name="runtime.session.lease", quick=("tests/unit/test_lease.py",)),
        Module(name="runtime.session.deadlines", quick=("tests/unit/test_deadlines.py",)),
        Module(name="journal.rules", quick=("tests/unit/test_rules.py",), wide=(_CONTRACT,)),
        Module(name="journal.chain", quick=("tests/unit/test_chain.py", "tests/docs/test_vectors.py"), simulated=False),
        Module(name="journal.records", quick=("tests/unit/test_views.py",), wide=(_RECORDS, _CONTRACT)),
        *(
            Module(name=f"identity.{name}", quick=quick, wide=wide, simulated=False)
            for name, quick, wide in (
                ("log.rules", (_LOG, _ATTACKS), (_WITNESSES, _SCHEDULES)),
                ("log.log", (_LOG, _ATTACKS), (_WITNESSES, _SCHEDULES)),
                ("log.log_state", (_LOG, _ATTACKS), (_WITNESSES, _SCHEDULES)),
                ("records.records", (_LOG, "tests/identity/test_vectors.py"), (_ATTACKS, _WITNESSES)),
                ("statements.certificate", (_INSTANCES, _ATTACKS), ()),
                ("statements.claim", (_INSTANCES,), (_ATTACKS,)),
                ("witness.witness", (_WITNESSES,), (_ATTACKS, _SCHEDULES)),
                ("witness.observe", (_ATTACKS, _WITNESSES, "tests/identity/test_monitor.py"), (_SCHEDULES,)),
                ("paper.derive", ("tests/identity/test_paper_fit.py",), ()),
                ("paper.sheets", ("tests/identity/test_sheets.py",), ()),
            )
        ),
    )
}


def read_explained(path: Path = EXPLAINED) -> dict[str, dict[str, str]]:
    """Reasons by module and key of the mutants that nothing can notice."""
    return tomllib.loads(path.read_text())


def stale(module: str, mutants: list[Mutant], explained: dict[str, str]) -> list[str]:
    """Explanations of mutants that are not there any more: the code has changed."""
    keys = {mutant.key for mutant in mutants}
    return [f"{module}: {key}" for key in explained if key not in keys]
