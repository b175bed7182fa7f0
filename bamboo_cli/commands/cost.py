"""``bamboo cost``"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options

if TYPE_CHECKING:
    from bamboo_cli.costs.report import Bill


class Grouping(StrEnum):
    RUN = "run"
    DAY = "day"
    MONTH = "month"
    CLUSTER = "cluster"
    ZONE = "zone"
    TYPE = "type"
    NODE = "node"


def command(
    cluster: options.Cluster = None,
    all_clusters: Annotated[
        bool, typer.Option("--all", help="All clusters that this machine has had, earlier ones included.")
    ] = False,
    by: Annotated[
        list[Grouping] | None,
        typer.Option("--by", help="What to sum up by; repeatable. By default whatever says something."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Only from then on: 7d, 36h, today, 2026-11-01, 2026-11-01T14:30.",
            autocompletion=completion.periods,
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only up to then, said alike.", autocompletion=completion.periods)
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="JSON instead of text; money in millionths of a dollar.")
    ] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Every charge as a line of CSV; they sum up to the total.")
    ] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report there, as a web page.")] = None,
) -> None:
    """Show what it cost, beside the on-demand price.

    By run, day, zone and node, with what preemptions cost, what is paid now, and what a run that goes on will have
    cost. Days are those of this machine's time zone. Works with the coordinator dead, and after `bamboo down`;
    --cluster also takes the id of an earlier cluster of the same name.

    \b
    Examples:
      bamboo cost
      bamboo cost --cluster my-job --html bill.html
      bamboo cost --all --since 30d --until today --by day --by type
      bamboo cost --csv > charges.csv

    See also: bamboo prices, bamboo status, docs/money.md.
    """
    import time

    from bamboo_cli import billing, bills, output, records
    from bamboo_cli.errors import StateError, UsageError
    from bamboo_cli.views import bill as view

    if sum((json, csv, html is not None)) > 1:
        raise UsageError("Only one of --json, --csv and --html is put out at a time.", next_step="Ask twice.")
    now = time.time()
    period = billing.period(since, until, now=now)
    paths = billing.state_files(cluster, all_clusters=all_clusters)
    damaged: list[StateError] = []
    clusters = bills.readable(paths, damaged, now=now, period=period)
    if csv:
        billing.print_csv(clusters)
    else:
        all_nodes = json or Grouping.NODE in (by or ())
        found = bills.bill_of(clusters, now=now, period=period, most_nodes=None if all_nodes else view.MOST_NODES)
        if len(damaged) < len(paths):
            _put_out(found, by or (), json=json, html=html)
    billing.check_whole(damaged, len(paths))
    is_text = not (json or csv or html or all_clusters)
    if is_text and paths[0].stem == "state" and (earlier := records.put_aside(paths[0])):
        output.note(f"Earlier clusters of this name, for --cluster or --all: {', '.join(earlier)}")


def _put_out(found: "Bill", by: Sequence[Grouping], *, json: bool, html: Path | None) -> None:
    from bamboo_cli import billing, output
    from bamboo_cli.views import bill as view

    if json:
        output.json_result(found)
        return
    shown = view.bill(found, [str(grouping) for grouping in by])
    if html is not None:
        billing.write_page(html, shown)
        output.note(f"The report is in {html}")
    else:
        output.result(shown)
