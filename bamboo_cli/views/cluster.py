"""A cluster and its run: at a glance, live while it trains, and as one line a step where there is no terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bamboo_trainer.plan import Plan
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bamboo_cli import output
from bamboo_cli.costs.ledger import usd
from bamboo_cli.training import how_to_go_on
from bamboo_cli.views.bill import cost_line
from bamboo_cli.views.story import event_line

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import ClusterStatus, NodeStatus, RunStatus, StepRow, StoryEvent

STALE_HEARTBEAT_S = 10.0
GONE = ("released", "ended")


def status(cluster: "ClusterStatus", now: float) -> RenderableType:
    """Who is there, what runs, what it costs."""
    parts: list[RenderableType] = [Text(line) for line in _headline(cluster, now)]
    if cluster.run is not None:
        parts += [Text(line) for line in (*run_lines(cluster.run), *waiting_lines(cluster))]
    parts += [Text(_money(cluster)), Text(""), nodes_table(cluster, now)]
    return Group(*parts)


def live(cluster: "ClusterStatus", story: Sequence["StoryEvent"], now: float) -> RenderableType:
    """The same while it changes, with a bar and the newest events below."""
    parts: list[RenderableType] = [Text(line, style="bold") for line in _headline(cluster, now)[:1]]
    parts += [Text(line) for line in _headline(cluster, now)[1:]]
    if cluster.run is not None:
        parts.append(_bar(cluster.run))
        parts += [Text(line) for line in (*run_lines(cluster.run), *waiting_lines(cluster))]
    parts += [Text(_money(cluster)), Text(""), nodes_table(cluster, now), Text("")]
    parts += [Text(event_line(event), style="dim", overflow="ellipsis", no_wrap=True) for event in story]
    return Group(*parts)


def nodes_table(cluster: "ClusterStatus", now: float) -> RenderableType:
    """Those that are there; of the others, how many there were."""
    there = present(cluster)
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("node", "state", "zone", "worker", "runs stage", "shadows"):
        table.add_column(column, overflow="fold")
    table.add_column("note", overflow="fold", style="dim")
    for node in there:
        table.add_row(*(Text(cell) for cell in _node_cells(node, cluster.plan, now)))
    parts: list[RenderableType] = [table] if there else [Text("no node is there")]
    gone = len(cluster.nodes) - len(there)
    if gone:
        parts.append(Text(f"and {gone} that {'is' if gone == 1 else 'are'} gone", style="dim"))
    return Group(*parts)


def _bar(run: "RunStatus") -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=run.num_steps, completed=run.committed_steps, width=40, complete_style="cyan")
    grid.add_row(bar, Text(f"{run.committed_steps / run.num_steps:.0%}"))
    return grid


def present(cluster: "ClusterStatus") -> list["NodeStatus"]:
    return [node for node in cluster.nodes if node.state not in GONE]


def run_lines(run: "RunStatus") -> list[str]:
    """The run in two or three lines."""
    first = [f"run {run.run_id}: {run.state}", f"{run.committed_steps} of {run.num_steps} steps"]
    if run.loss is not None:
        first_loss = f" (first {output.loss(run.first_loss)})" if run.first_loss else ""
        first.append(f"loss {output.loss(run.loss)}{first_loss}")
    if run.samples_per_s is not None and run.ended_at is None:
        first.append(f"{run.samples_per_s:.1f} samples/s")
    lines = [" · ".join(first), " · ".join([*counts(run), f"paused {output.seconds(run.pause_s)} in all"])]
    if run.limit:
        lines.append(run.limit)
    if run.reason:
        lines.append(run.reason)
    if run.ended_at is not None and run.state != "done":
        lines += end_lines(run)
    return lines


def end_lines(run: "RunStatus") -> list[str]:
    """What is left of a run that has ended too early, and how it goes on."""
    lines = [newest_checkpoint(run.checkpoint_step)]
    if run.checkpoint_step is not None:
        lines.append(how_to_go_on(run.run_id))
    return lines


def waiting_lines(cluster: "ClusterStatus") -> list[str]:
    """What a run that has to wait waits for; none for any other."""
    if cluster.run is None or cluster.run.state not in ("starting", "waiting"):
        return []
    if cluster.run.checkpoint_trouble:
        return [f"waits for its checkpoints: {cluster.run.checkpoint_trouble}"]
    there = sum(node.state in ("joined", "standby", "active") for node in cluster.nodes)
    asked = [node for node in cluster.nodes if node.state in ("intended", "booting")]
    reasons = ", ".join(sorted({node.reason for node in asked if node.reason}))
    why = f" ({reasons})" if reasons else ""
    least = f"at least {cluster.run.min_nodes} of {cluster.wanted_nodes}"
    return [f"waits for nodes: {least} needed, {there} there, {len(asked)} being asked for{why}"]


def newest_checkpoint(step: int | None) -> str:
    return "there is no complete checkpoint" if step is None else f"the newest complete checkpoint is of step {step}"


def counts(run: "RunStatus") -> list[str]:
    return [
        output.plural(run.preemptions, "preemption"),
        output.plural(run.failovers, "failover"),
        output.plural(run.reconfigurations, "reconfiguration"),
        output.plural(run.restores, "restore"),
        f"{output.plural(run.steps_rerun, 'step')} run again",
    ]


def step_line(row: "StepRow", num_steps: int) -> str:
    """``step 41  loss 2.3456  lr 1.00e-03  0.21 s  76.2 samples/s``; steps count from 0 and are padded to line up."""
    rate = f"  {row.num_samples / row.step_s:.1f} samples/s" if row.step_s > 0 else ""
    number = str(row.step).rjust(len(str(num_steps - 1)))
    return f"step {number}  loss {output.loss(row.loss)}  lr {row.learning_rate:.2e}  {row.step_s:.2f} s{rate}"


def _headline(cluster: "ClusterStatus", now: float) -> list[str]:
    coordinator = cluster.coordinator
    if cluster.state == "closed":
        who = "nothing is rented"
    elif coordinator.alive:
        silence = now - coordinator.heartbeat_at if coordinator.heartbeat_at is not None else 0.0
        slow = f", silent for {output.seconds(silence)}" if silence > STALE_HEARTBEAT_S else ""
        who = f"coordinator is process {coordinator.pid}{slow}"
    else:
        who = "no coordinator is running"
    lines = [f"cluster {cluster.name} ({cluster.cluster_id}, {cluster.cloud}): {cluster.state} · {who}"]
    if cluster.gave_up and cluster.state != "closed":
        lines.append(f"No further node is rented: {cluster.gave_up}")
    if not coordinator.alive and cluster.state != "closed":
        lines.append(f"{_without_coordinator(cluster)} `bamboo up` starts it again.")
    return lines


def _without_coordinator(cluster: "ClusterStatus") -> str:
    if cluster.run is not None and cluster.run.ended_at is None:
        return "Training goes on without it until a node is lost."
    if any(node.state != "intended" for node in present(cluster)):
        return "The nodes stay rented without it, until `bamboo down`."
    return "Nothing was rented as far as is known; `bamboo down` makes sure."


def _money(cluster: "ClusterStatus") -> str:
    so_far = "" if cluster.state == "closed" else " so far"
    spot, on_demand = usd(cluster.spot_microusd), usd(cluster.on_demand_microusd)
    return cost_line(spot, on_demand, cluster.on_demand_note, so_far)


def _node_cells(node: "NodeStatus", plan: Plan | None, now: float) -> list[str]:
    note = node.reason
    if node.notice_deadline is not None:
        note = f"will be taken in {max(0.0, node.notice_deadline - now):.0f} s" + (f"; {note}" if note else "")
    return [
        node.node_id,
        node.state,
        node.zone,
        _workers(node),
        _stages((place for worker in node.workers for place in worker.hosts), plan),
        _stages((place for worker in node.workers for place in worker.shadows), plan),
        note,
    ]


def _workers(node: "NodeStatus") -> str:
    """``prepared``; of several, how many in which state."""
    states = Counter(worker.state for worker in node.workers)
    if len(node.workers) < 2:
        return "".join(states)
    return ", ".join(f"{number} {state}" for state, number in states.items())


def _stages(stages: Iterable[tuple[int, int]], plan: Plan | None) -> str:
    """``1``; with several pipelines ``0/1`` (pipeline/stage)."""
    several = plan is not None and plan.num_pipelines > 1
    return ", ".join(f"{pipeline}/{stage}" if several else str(stage) for pipeline, stage in stages)
