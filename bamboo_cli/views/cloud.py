"""What a cloud says before anything is rented: findings, prices, requests."""

import json
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli import output
from bamboo_cli.aws_check import Finding, Verdict
from bamboo_cli.aws_prices import PriceRow
from bamboo_cli.aws_rehearsal import Rehearsal
from bamboo_cli.providers.aws_cloud import catalogue

_STYLES = {Verdict.OK: "green", Verdict.PROBLEM: "red", Verdict.UNKNOWN: "yellow"}


def findings(found: Sequence[Finding]) -> RenderableType:
    """A line each; under a problem, what to do."""
    table = Table.grid(padding=(0, 2))
    for finding in found:
        table.add_row(
            Text(finding.verdict, style=_STYLES[finding.verdict]),
            Text(finding.subject),
            Text(finding.text, overflow="fold"),
        )
        if finding.next_step and finding.verdict is not Verdict.OK:
            table.add_row("", "", Text(finding.next_step, style="dim", overflow="fold"))
    return table


def prices(rows: Sequence[PriceRow]) -> RenderableType:
    """USD per hour; the cheapest of each type first."""
    table = Table(box=None, pad_edge=False, show_edge=False)
    for name in ("type", "GPU", "zone"):
        table.add_column(name)
    for name in ("memory", "spot now", "7 days low", "high", "on demand", "saving"):
        table.add_column(name, justify="right")
    table.add_column("seen here")
    for row in rows:
        table.add_row(
            row.instance_type,
            row.gpu or "",
            row.zone,
            f"{row.memory_gb:.0f} GB" if row.memory_gb else "",
            output.usd(row.spot_usd_per_hour),
            output.usd(row.low_usd_per_hour),
            output.usd(row.high_usd_per_hour),
            f"{_about(row)}{output.usd(row.on_demand_usd_per_hour)}" if row.on_demand_usd_per_hour else "not known",
            f"{row.saving:.0%}" if row.saving is not None else "",
            _seen(row),
        )
    sources = ", ".join(dict.fromkeys(f"{_about(row)} {row.on_demand_source}".strip() for row in rows))
    return Group(table, Text(f"USD per hour; spot prices are live, on demand: {sources}", style="dim"))


def _about(row: PriceRow) -> str:
    """The last line says what the mark means."""
    return "~" if row.on_demand_source == catalogue.SOURCE else ""


def _seen(row: PriceRow) -> str:
    if not row.num_rented:
        return ""
    return f"{row.num_rented} rented, {row.num_taken} taken in {output.seconds(row.rented_s)}"


def rehearsal(found: Rehearsal) -> RenderableType:
    """Zones as they would be asked, then each request as it would be sent, and what EC2 says to it."""
    zones = Table(box=None, pad_edge=False, show_edge=False)
    for name in ("zone", "type", "spot", "on demand", "score"):
        zones.add_column(name, justify="left" if name in ("zone", "type") else "right")
    for zone in found.zones:
        score = "" if zone.score is None else f"{zone.score} of 10"
        prices = output.usd(zone.spot_usd_per_hour), output.usd(zone.on_demand_usd_per_hour)
        zones.add_row(zone.name, zone.instance_type, *prices, score)
    parts: list[RenderableType] = [
        Text(f"{output.plural(found.num_nodes, 'node')} for about {output.usd(found.spot_usd_per_hour)} an hour"),
        Text(""),
        zones,
        Text(f"prices: {', '.join(dict.fromkeys(zone.price_source for zone in found.zones))}", style="dim"),
    ]
    for asked in found.requests:
        parts += [
            Text(""),
            Text(f"{asked.action} in {asked.region}{asked.times}", style="bold"),
            Text(json.dumps(asked.request, indent=2, ensure_ascii=False)),
            Text(f"EC2 {asked.answer}", style="green" if asked.accepted else "red"),
        ]
    return Group(*parts)
