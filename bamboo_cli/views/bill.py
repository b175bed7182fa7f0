"""What it cost."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli import output
from bamboo_cli.costs.ledger import usd
from bamboo_cli.costs.report import Amount, Bill, RunBill

GROUPINGS = ("run", "day", "month", "cluster", "zone", "type", "node")
BAR_CELLS = 24
MOST_NODES = 64
MOST_DAYS = 62
"""More are shown when they are asked for; in place of days, months."""
TIMES = ("day", "month")


def bill(found: Bill, by: Sequence[str] = ()) -> RenderableType:
    """A table for each of the groupings ``by``, else for those that say something; all sum up to the same total."""
    parts: list[RenderableType] = []
    for grouping in by or _telling(found):
        parts += [_table(grouping, _rows(found, grouping), found.total), Text("")]
    parts += [Text(line) for run in found.runs for line in run_bill_lines(run)]
    if found.microusd_per_hour:
        parts.append(Text(f"now: {output.usd(usd(found.microusd_per_hour))} an hour"))
    if found.disk_microusd:
        parts.append(Text(f"not in it, estimated: {_beside(found)}"))
    if found.price_sources:
        parts.append(Text(f"prices: {', '.join(found.price_sources)}", style="dim"))
    return Group(*parts)


def _beside(found: Bill) -> str:
    disks = f"{output.usd(found.disk_microusd / 1e6)} for disks"
    if not found.crossing_bytes:
        return disks
    crossing = f"{output.usd(found.crossing_microusd / 1e6)} for {output.size(found.crossing_bytes)} between zones"
    return f"{disks}, {crossing}"


def _telling(found: Bill) -> list[str]:
    more = {
        "day": 1 < len(found.by_day) <= MOST_DAYS,
        "month": len(found.by_day) > MOST_DAYS,
        "cluster": len(found.by_cluster) > 1,
        "type": len(found.by_type) > 1,
        "node": 0 < len(found.by_node) <= MOST_NODES,
    }
    return [grouping for grouping in GROUPINGS if more.get(grouping, True)]


def _rows(found: Bill, grouping: str) -> Sequence[tuple[str, Amount]]:
    if grouping == "run":
        return [*((run.run_id, run.amount) for run in found.runs), ("(no run)", found.idle)]
    rows: Sequence[tuple[str, Amount]] = getattr(found, f"by_{grouping}")
    return rows


def run_bill_lines(run: RunBill) -> list[str]:
    """What a run's money bought."""
    per = [
        (run.microusd_per_step, "a step"),
        (run.microusd_per_million_samples, "a million samples"),
        (run.microusd_per_million_tokens, "a million tokens"),
    ]
    rates = ", ".join(f"{output.usd(amount / 1e6)} {what}" for amount, what in per if amount)
    lines = [rates] if rates else []
    if run.pause_microusd:
        lines.append(f"{output.usd(run.pause_microusd / 1e6)} of it while the run stood still for losses")
    if run.steps_rerun:
        steps = output.plural(run.steps_rerun, "step")
        lines.append(f"{output.usd(run.rerun_microusd / 1e6)} of it for {steps} that had to be run again")
    if run.stageless_microusd:
        lines.append(
            f"{output.usd(run.stageless_microusd / 1e6)} of it for nodes without a stage: booting, standing by"
        )
    if run.same_work_microusd:
        saved = 1 - run.amount.spot_microusd / run.same_work_microusd
        work = output.usd(run.same_work_microusd / 1e6)
        compared = f"{saved:.0%} saved" if saved >= 0 else f"which this run has cost {-saved:.0%} more than"
        lines.append(f"the same steps undisturbed on demand: about {work}, {compared}")
    if run.projection is not None:
        left = output.seconds(run.projection.hours_left * 3600)
        so_far, then = output.usd(usd(run.amount.spot_microusd)), output.usd(run.projection.total_microusd / 1e6)
        lines.append(f"cost {so_far} so far; at this pace done in {left}, and has cost {then} then")
    return [f"{run.run_id}: {line}" for line in lines]


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
    if what in TIMES:
        table.add_column("")
    most = max((amount.spot_microusd for _, amount in amounts), default=0)
    for name, amount in amounts:
        if amount.seconds:
            bar = ["█" * round(BAR_CELLS * amount.spot_microusd / most)] if what in TIMES and most else []
            table.add_row(name, *_cells(amount), *bar)
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
