"""What ``bamboo cost`` asks for: which files, which period, and the forms in which a bill is put out."""

import csv
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo_cli import output, records
from bamboo_cli.coordinator.money import ClusterMoney, Period
from bamboo_cli.costs import periods
from bamboo_cli.costs.ledger import Charge
from bamboo_cli.errors import StateError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

PAGE_COLUMNS = 120


def state_files(cluster: str | None, *, all_clusters: bool) -> Sequence[Path]:
    """Raises StateError, UsageError."""
    if not all_clusters:
        return [records.state_file(cluster)]
    if cluster is not None:
        raise UsageError("--all and --cluster do not go together.", next_step="Leave one of them out.")
    found = records.state_files(None)
    if not found:
        raise StateError("there has been no cluster yet", next_step="`bamboo up` makes one.")
    copies = records.copies(found)
    for path, original in copies.items():
        output.note(f"{path} is left out: it is a copy of {original}, or was one")
    return [path for path in found if path not in copies]


def period(since: str | None, until: str | None, *, now: float) -> Period:
    """Raises UsageError."""
    found = Period(
        since=-math.inf if since is None else _moment("--since", since, now),
        until=math.inf if until is None else _moment("--until", until, now),
    )
    if found.since >= min(found.until, now):
        raise UsageError("The period ends before it begins.", next_step=f"--since may be {periods.EXAMPLES}.")
    return found


def _moment(option: str, text: str, now: float) -> float:
    try:
        return periods.moment(text, now=now)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{option}: {text!r} is no time that Bamboo knows.",
            next_step=f"Say it as one of: {periods.EXAMPLES}.",
        ) from error


def print_csv(clusters: Iterable[ClusterMoney]) -> None:
    """Money in millionths of a dollar, times in seconds since the epoch."""
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow(Charge._fields)
    for money in clusters:
        lines.writerows(money.charges)
    sys.stdout.flush()


def check_whole(damaged: Sequence[StateError], num_files: int) -> None:
    """What could be read has been put out. Raises StateError when that was not all."""
    if num_files == 1 and damaged:
        raise damaged[0]
    if damaged:
        raise StateError(
            f"{len(damaged)} of {num_files} state files could not be read, and what they hold is not in the bill",
            next_step="\n".join(error.message for error in damaged),
        )


def write_page(path: Path, shown: "RenderableType") -> None:
    """Raises UsageError when it cannot be written."""
    try:
        path.write_text(output.page(shown, PAGE_COLUMNS), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", next_step="Name another file.") from error
