"""From the words of the command to a certificate: which run, which steps."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from bamboo_cli import records
from bamboo_cli.coordinator.reader import read_ledger, read_runs
from bamboo_cli.coordinator.status import RunLedger
from bamboo_cli.errors import BambooError, StateError, UsageError
from bamboo_cli.recipe_check import missing_packages
from bamboo_cli.verification.certificate import Certificate, certify


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    steps: tuple[int, int] | None
    whole: bool
    ledger_only: bool


def parse(steps: str | None, *, whole: bool, ledger_only: bool) -> Asked:
    """Raises UsageError."""
    if sum([steps is not None, whole, ledger_only]) > 1:
        raise UsageError("--steps, --all and --ledger exclude each other", next_step="Give one of them.")
    if steps is None:
        return Asked(steps=None, whole=whole, ledger_only=ledger_only)
    match = re.fullmatch(r"(\d+)(?::(\d+))?", steps)
    if match is None:
        raise UsageError(
            f"--steps {steps} is no range of steps", next_step="Write FIRST:END, such as 10:14, or one step."
        )
    first = int(match[1])
    return Asked(steps=(first, int(match[2]) if match[2] else first + 1), whole=False, ledger_only=False)


def verify(run_id: str | None, cluster: str | None, asked: Asked, saw: Callable[[str], None]) -> Certificate:
    """Raises StateError where there is no such run, BambooError where torch is needed and missing."""
    ledger = find(run_id, cluster)
    missing = missing_packages()
    if missing and not asked.ledger_only:
        raise BambooError(
            f"computing steps again needs {', '.join(missing)}, which is not installed",
            next_step="Install it with: pip install 'bamboo-train[train]'; or check the ledger alone with --ledger.",
        )
    return certify(ledger, asked=asked.steps, whole=asked.whole, ledger_only=asked.ledger_only, saw=saw)


def find(run_id: str | None, cluster: str | None) -> RunLedger:
    """The run, or the newest of the cluster; also one of a cluster that was closed and put aside."""
    if run_id is None:
        path = records.state_file(cluster)
        runs = read_runs(path)
        if not runs:
            raise StateError(
                f"cluster {path.parent.name} has had no run", next_step="Start one with `bamboo train JOB`."
            )
        found = read_ledger(path, runs[-1].run_id)
        assert found is not None, "read a moment ago"
        return found
    found = read_ledger(records.find_run(run_id, cluster), run_id)
    assert found is not None, "read a moment ago"
    return found
