"""The parts of the live view, each in as many lines as it needs and none wider than asked for."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from bamboo_cli import health, output
from bamboo_cli.health import Health
from bamboo_cli.views import grid
from bamboo_cli.views.cluster import counts, end_lines, idle_lines, waiting_lines, who_decides, without_coordinator
from bamboo_cli.views.lines import Part, Styled, joined
from bamboo_cli.views.sparkline import sparkline

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import ClusterStatus, NodeStatus, RunStatus, Series

BAR_CELLS = 30
LEAST_BAR_CELLS = 8
SPARKLINE_CELLS = 60
LABEL = 7
MOST_ALERTS = 4
MOST_NODES_A_LINE = 24
NARROW = 60
STILL_S, STILL_STEPS = 3.0, 3.0
"""Without a commit, in seconds and in usual steps, a run is said to stand still."""
STATE_STYLES = {"running": "green", "done": "green", "failed": "bold red", "waiting": "yellow", "halting": "yellow"}


def title(cluster: "ClusterStatus", now: float, width: int) -> Text:
    if width < NARROW:
        return joined([Styled(f"{cluster.name}: {cluster.state}", "bold"), who_decides(cluster, now)], width)
    head = f"cluster {cluster.name} ({cluster.cluster_id}, {cluster.cloud}): {cluster.state}"
    if cluster.state == "up":
        head += f" for {output.seconds(now - cluster.created_at)}"
    return joined([Styled(head, "bold"), who_decides(cluster, now)], width)


def trouble(cluster: "ClusterStatus", now: float) -> list[str]:
    """What somebody has to do something about, or a run waits for."""
    lines = without_coordinator(cluster)
    if cluster.run is not None and (still_s := _stands_still_s(cluster.run, now)):
        lines.append(f"no step has been committed for {output.seconds(still_s)}")
    if cluster.gave_up and cluster.state != "closed":
        lines.append(f"No further node is rented: {cluster.gave_up}")
    lines += idle_lines(cluster, now)
    if cluster.run is not None:
        lines += waiting_lines(cluster)
        lines += [line for line in (cluster.run.limit, cluster.run.reason) if line]
        if cluster.run.ended_at is not None and cluster.run.state != "done":
            lines += end_lines(cluster.run)
    return lines


def _stands_still_s(run: "RunStatus", now: float) -> float | None:
    """None: no longer than steps usually take."""
    if run.last_commit_at is None or run.ended_at is not None or run.state == "finishing":
        return None
    still_s = now - run.last_commit_at
    return still_s if still_s > max(STILL_S, STILL_STEPS * (run.usual_step_s or 0.0)) else None


def run_line(cluster: "ClusterStatus", run: "RunStatus", width: int) -> Text:
    """``run demo-1: running  ━━━━━────  41 of 120 steps · 34% · 9 min 12 s left``"""
    style = STATE_STYLES.get(run.state, "")
    share = f"{run.committed_steps / run.num_steps:.0%}"
    if width < NARROW:
        return joined([Styled(run.state, style), f"{run.committed_steps}/{run.num_steps}", share], width, separator=" ")
    left = [] if cluster.hours_left is None else [f"{output.seconds(3600 * cluster.hours_left)} left"]
    figures = joined([f"{run.committed_steps} of {run.num_steps} steps", share, *left])
    line = joined([Styled(f"run {run.run_id}", "bold"), Styled(run.state, style)], separator=": ")
    cells = min(BAR_CELLS, width - line.cell_len - figures.cell_len - 4)
    if cells >= LEAST_BAR_CELLS:
        done = int(cells * run.committed_steps / run.num_steps)
        line.append("  ").append("━" * done, "cyan").append("─" * (cells - done), "dim").append("  ")
    else:
        line.append(" · ")
    line.append(figures)
    line.truncate(width, overflow="ellipsis")
    return line


def figures(run: "RunStatus", series: "Series", width: int) -> list[Text]:
    """The loss over the whole run, the speed over its newest steps."""
    rows: list[tuple[str, str, Sequence[float | None], str, str]] = []
    if run.loss is not None:
        first = f"first {output.loss(run.first_loss)}" if run.first_loss is not None else ""
        rows.append(("loss", output.loss(run.loss), series.losses, "magenta", first))
    if run.samples_per_s is not None:
        step = f"a step {output.seconds(run.usual_step_s)}" if run.usual_step_s else ""
        rows.append(("speed", f"{run.samples_per_s:.1f} samples/s", series.samples_per_s, "cyan", step))
    values, after = (max((len(row[i]) for row in rows), default=0) for i in (1, 4))
    room = width - LABEL - values - 2 - after - 2
    if room < LEAST_BAR_CELLS:
        after, room = 0, width - LABEL - values - 2
    lines = []
    for label, value, numbers, style, behind in rows:
        from_zero = label == "speed"
        cells = min(room, SPARKLINE_CELLS)
        line = Text(f"{label.ljust(LABEL)}{value.ljust(values)}  ")
        bars = sparkline(numbers[-cells:] if from_zero else numbers, cells, from_zero=from_zero)
        line.append(bars.ljust(min(cells, max(len(row[2]) for row in rows))), style)
        if after and behind:
            line.append(f"  {behind}", "dim")
        line.rstrip()
        lines.append(line)
    return lines


def short_figures(run: "RunStatus", width: int | None) -> Text:
    parts = [] if run.loss is None else [f"loss {output.loss(run.loss)}"]
    if run.samples_per_s is not None and run.ended_at is None:
        parts.append(f"{run.samples_per_s:.1f} samples/s")
    return joined(parts, width)


def money_line(cluster: "ClusterStatus", width: int) -> Text:
    """Of the whole cluster: so far, now, when the run is done; what was saved."""
    spot, on_demand = cluster.spot_microusd / 1e6, cluster.on_demand_microusd / 1e6
    whose = "cluster" if width < NARROW else "cost   cluster"
    parts: list[Part] = [f"{whose} {output.usd(spot)}" + ("" if cluster.state == "closed" else " so far")]
    if cluster.microusd_per_hour:
        parts.append(f"{output.usd(cluster.microusd_per_hour / 1e6)} an hour now")
    if cluster.projected_microusd is not None:
        parts.append(f"~{output.usd(cluster.projected_microusd / 1e6)} when done")
    if on_demand:
        note = " (estimate)" if cluster.on_demand_note else ""
        parts.append(f"{1 - spot / on_demand:.0%} saved of {output.usd(on_demand)} on demand{note}")
    return joined(parts, width)


def counts_line(run: "RunStatus", width: int) -> Text:
    so_far = counts(run)
    return joined([f"losses {so_far[0]}", f"paused {output.seconds(run.pause_s)} in all", *so_far[1:]], width)


def others(cluster: "ClusterStatus", pipelines: grid.Pipelines, width: int) -> list[Text]:
    """Nodes that run no stage, by state: a line each."""
    lines = []
    for (state, reason), nodes in _other_nodes(cluster, pipelines).items():
        names = [node.node_id for node in nodes[:MOST_NODES_A_LINE]]
        more = len(nodes) - len(names)
        line = Text(f"{state.ljust(9)}{' '.join(names)}{f' and {more} more' if more else ''}", no_wrap=True)
        if reason:
            line.append(f"  {reason}", "dim")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def others_counted(cluster: "ClusterStatus", pipelines: grid.Pipelines, width: int) -> Text:
    found: dict[str, int] = defaultdict(int)
    for (state, _), nodes in _other_nodes(cluster, pipelines).items():
        found[state] += len(nodes)
    return joined([f"{number} {state}" for state, number in found.items()], width)


def _other_nodes(cluster: "ClusterStatus", pipelines: grid.Pipelines) -> dict[tuple[str, str], list["NodeStatus"]]:
    placed = {place.node_id for pipeline in pipelines for place in pipeline}
    found: dict[tuple[str, str], list[NodeStatus]] = defaultdict(list)
    for node in health.present(cluster):
        if node.node_id not in placed:
            found[node.state, node.reason].append(node)
    return found


def alerts(cluster: "ClusterStatus", now: float, width: int) -> list[Text]:
    """Who will be taken, and when; who is silent. The most urgent first."""
    found = [
        Styled(f"{grid.SIGNS[Health.GOING]} {_going(cluster, node, now)}", grid.STYLES[Health.GOING])
        for node in health.going(cluster)
    ]
    found += [
        Styled(
            f"{grid.SIGNS[Health.SILENT]} {node_id} has been silent for {output.seconds(silent_s)}",
            grid.STYLES[Health.SILENT],
        )
        for node_id, silent_s in health.silences(cluster).items()
    ]
    lines = [joined([line], width) for line in found[:MOST_ALERTS]]
    if len(found) > MOST_ALERTS:
        lines.append(joined([f"  and {len(found) - MOST_ALERTS} more"], width))
    return lines


def _going(cluster: "ClusterStatus", node: "NodeStatus", now: float) -> str:
    left_s = health.seconds_left(node, now)
    when = "leaves at the next step boundary" if left_s is None else f"will be taken in {left_s:.0f} s"
    hosted = [(worker.worker_id, place) for worker in node.workers for place in worker.hosts]
    if cluster.plan is None or not hosted:
        return f"{node.node_id} {when}; it runs no stage"
    shadows = dict.fromkeys(
        shadow.rpartition("/")[0] for _, place in hosted for shadow in cluster.plan.stage(*place).shadows
    )
    stages = ", ".join(f"stage {stage} of p{pipeline}" for _, (pipeline, stage) in hosted)
    return f"{node.node_id} {when}; it runs {stages}, shadowed by {', '.join(shadows) or 'nobody'}"


def short_alerts(cluster: "ClusterStatus", now: float, width: int) -> list[Text]:
    going, silent = list(health.going(cluster)), health.silences(cluster)
    parts: list[Part] = []
    if going:
        left_s = health.seconds_left(going[0], now)
        soonest = "" if left_s is None else f", {going[0].node_id} in {left_s:.0f} s"
        parts.append(Styled(f"{output.plural(len(going), 'node')} going{soonest}", grid.STYLES[Health.GOING]))
    if silent:
        parts.append(Styled(f"{len(silent)} silent", grid.STYLES[Health.SILENT]))
    return [joined(parts, width)] if parts else []
