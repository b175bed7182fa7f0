"""What it cost."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli import output
from bamboo_cli.costs.ledger import usd
from bamboo_cli.costs.report import Amount, Bill, RunBill


def bill(found: Bill) -> RenderableType:
    """By run, zone and node; every table sums up to the same total."""
    parts: list[RenderableType] = [
        _table("run", [*((run.run_id, run.amount) for run in found.runs), ("(no run)", found.idle)], found.total),
        Text(""),
        _table("zone", found.by_zone, found.total),
        Text(""),
        _table("node", found.by_node, found.total),
        Text(""),
    ]
    parts += [Text(line) for run in found.runs for line in run_bill_lines(run)]
    if found.price_sources:
        parts.append(Text(f"prices: {', '.join(found.price_sources)}", style="dim"))
    return Group(*parts)


def run_bill_lines(run: RunBill) -> list[str]:
    """What a run's money bought."""
    per = [
        (run.microusd_per_step, "a step"),
        (run.microusd_per_million_samples, "a million samples"),
        (run.microusd_per_million_tokens, "a million tokens"),
    ]
    rates = ", ".join(f"{output.usd(amount / 1e6)} {what}" for amount, what in per if amount)
    lines = [f"{run.run_id}: {rates}"] if rates else []
    if run.pause_microusd:
        lines.append(f"{run.run_id}: {output.usd(run.pause_microusd / 1e6)} of it while the run stood still for losses")
    if run.steps_rerun:
        steps = output.plural(run.steps_rerun, "step")
        lines.append(f"{run.run_id}: {output.usd(run.rerun_microusd / 1e6)} of it for {steps} that had to be run again")
    return lines


def total_line(total: Amount) -> str:
    """``cost $0.0412 for 12 min 04 s of machines; on demand $0.1310, 69% saved``"""
    machines = f" for {output.seconds(total.seconds)} of machines"
    return cost_line(usd(total.spot_microusd), usd(total.on_demand_microusd), total.on_demand_note, machines)


def cost_line(spot_usd: float, on_demand_usd: float, note: str, what: str = "") -> str:
    """``what``: behind the cost; ``note``: behind the price on demand, that it is an estimate, say."""
    saved = f", {1 - spot_usd / on_demand_usd:.0%} saved" if on_demand_usd else ""
    called = f" ({note})" if note else ""
    return f"cost {output.usd(spot_usd)}{what}; on demand {output.usd(on_demand_usd)}{called}{saved}"


def _table(what: str, amounts: Sequence[tuple[str, Amount]], total: Amount) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column(what, overflow="fold")
    for column in ("machine time", "spot", "on demand", "saved"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, amount in amounts:
        if amount.seconds:
            table.add_row(name, *_cells(amount))
    table.add_row("total", *_cells(total), style="bold")
    return table


def _cells(amount: Amount) -> tuple[str, ...]:
    """Six digits after the point, so that the rows visibly add up to the total."""
    return (
        output.seconds(amount.seconds),
        f"${usd(amount.spot_microusd):.6f}",
        f"${usd(amount.on_demand_microusd):.6f}",
        "" if amount.saved_share is None else f"{amount.saved_share:.0%}",
    )
