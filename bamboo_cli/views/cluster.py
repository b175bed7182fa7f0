"""A cluster and its run: at a glance, and as a line a step where there is no terminal. ``screen`` is the live view."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bamboo_trainer.plan import Plan
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from bamboo_cli import health, output
from bamboo_cli.costs.ledger import usd
from bamboo_cli.training import how_to_go_on
from bamboo_cli.views import grid
from bamboo_cli.views.bill import cost_line
from bamboo_cli.views.lines import Column, in_ascii, joined, table

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import ClusterStatus, NodeStatus, RunStatus, StepRow

STALE_HEARTBEAT_S = 10.0
MOST_NODES = 40
"""More are counted, unless they are asked for."""
MOST_ROWS_OF_NAMES = 12
"""Of more pipelines, the grid shows signs."""
COLUMNS = (
    Column("node", 0),
    Column("state", 6),
    Column("zone", 2),
    Column("worker", 1),
    Column("runs stage", 5),
    Column("shadows", 3),
)
GRID_WIDTH = 200
"""Where lines may be as long as they get."""


@dataclass(frozen=True, slots=True)
class Status:
    """Who is there, what runs, what it costs. For rich, which says how wide it may be."""

    cluster: "ClusterStatus"
    now: float
    every_node: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = self._lines(options.max_width)
        yield from map(in_ascii, lines) if options.ascii_only else lines

    def _lines(self, max_width: int) -> Iterator[Text]:
        cluster, width = self.cluster, min(max_width, GRID_WIDTH)
        yield from map(Text, _headline(cluster, self.now))
        if cluster.run is not None:
            yield from map(Text, (*run_lines(cluster.run), *waiting_lines(cluster)))
        yield from map(Text, (*idle_lines(cluster, self.now), *_money(cluster)))
        yield Text()
        if pipelines := health.pipelines(cluster, self.now):
            few = len(pipelines) <= MOST_ROWS_OF_NAMES
            yield from (
                (grid.named(pipelines, width) if few else None)
                or grid.signs(pipelines, width)
                or [grid.counted(pipelines, width)]
            )
            yield grid.legend(pipelines, width)
            yield Text()
        yield from nodes_table(cluster, self.now, max_width, every=self.every_node)


def status(cluster: "ClusterStatus", now: float, *, every_node: bool = False) -> Status:
    return Status(cluster, now, every_node)


def brief(cluster: "ClusterStatus") -> dict[str, Any]:
    """For ``--json``: without the job file's text, and of the plan without what only its workers need."""
    found: dict[str, Any] = output.as_json(cluster)
    del found["job_text"]
    if found["plan"] is not None:
        del found["plan"]["fetches"], found["plan"]["members"], found["plan"]["roll_forward"]
        for stage in (stage for pipeline in found["plan"]["pipelines"] for stage in pipeline["stages"]):
            del stage["slots"]
    return found


def nodes_table(cluster: "ClusterStatus", now: float, width: int, *, every: bool) -> list[Text]:
    """Those that are there, of very many only those that need a word; of the others, how many there are and were."""
    there = present(cluster)
    shown = there if every or len(there) <= MOST_NODES else [node for node in there if _needs_a_word(node)]
    lines = [Text("no node is there")] if not there else []
    if shown:
        rows = [_node_cells(node, cluster.plan) for node in shown]
        lines += table(COLUMNS, rows, [_note(node, now) for node in shown], width)
    if rest := len(there) - len(shown):
        states = Counter(node.state for node in there if not _needs_a_word(node))
        counted = ", ".join(f"{number} {state}" for state, number in states.items())
        text = f"{'and ' if shown else ''}{output.plural(rest, 'node')} without a word: {counted}"
        lines.append(joined([text, "--nodes shows each"], width))
    gone = len(cluster.nodes) - len(there)
    if gone:
        lines.append(Text(f"and {gone} that {'is' if gone == 1 else 'are'} gone", style="dim"))
    return lines


def _needs_a_word(node: "NodeStatus") -> bool:
    return bool(node.reason) or health.is_going(node) or node.state not in ("active", "standby")


def present(cluster: "ClusterStatus") -> list["NodeStatus"]:
    return health.present(cluster)


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
    who = who_decides(cluster, now)
    lines = [f"cluster {cluster.name} ({cluster.cluster_id}, {cluster.cloud}): {cluster.state} · {who}"]
    if cluster.gave_up and cluster.state != "closed":
        lines.append(f"No further node is rented: {cluster.gave_up}")
    return lines + without_coordinator(cluster)


def who_decides(cluster: "ClusterStatus", now: float) -> str:
    coordinator = cluster.coordinator
    if cluster.state == "closed":
        return "nothing is rented"
    if not coordinator.alive:
        return "no coordinator is running"
    silence = now - coordinator.heartbeat_at if coordinator.heartbeat_at is not None else 0.0
    slow = f", silent for {output.seconds(silence)}" if silence > STALE_HEARTBEAT_S else ""
    return f"coordinator is process {coordinator.pid}{slow}"


def without_coordinator(cluster: "ClusterStatus") -> list[str]:
    """What goes on without it, and how it starts again; nothing where it lives or is not needed any more."""
    if cluster.coordinator.alive or cluster.state == "closed":
        return []
    if cluster.run is not None and cluster.run.ended_at is None:
        goes_on = "Training goes on without it until a node is lost."
    elif any(node.state != "intended" for node in present(cluster)):
        goes_on = "The nodes stay rented without it, until `bamboo down`."
    else:
        goes_on = "Nothing was rented as far as is known; `bamboo down` makes sure."
    return [f"{goes_on} `bamboo up` starts it again."]


def idle_lines(cluster: "ClusterStatus", now: float) -> list[str]:
    if cluster.gives_back_at is None or (cluster.run is not None and cluster.run.ended_at is None):
        return []
    return [f"Nothing runs: all nodes are given back in {output.seconds(max(0.0, cluster.gives_back_at - now))}"]


def _money(cluster: "ClusterStatus") -> list[str]:
    so_far = " for the cluster" + ("" if cluster.state == "closed" else " so far")
    spot, on_demand = usd(cluster.spot_microusd), usd(cluster.on_demand_microusd)
    ahead = [f"{output.usd(usd(cluster.microusd_per_hour))} an hour now"] if cluster.microusd_per_hour else []
    if cluster.hours_left is not None and cluster.projected_microusd is not None:
        total = output.usd(cluster.projected_microusd / 1e6)
        left = output.seconds(3600 * cluster.hours_left)
        ahead.append(f"at this pace the run is done in {left}, and the cluster has cost {total} then")
    lines = [cost_line(spot, on_demand, cluster.on_demand_note, so_far)]
    return [*lines, "; ".join(ahead)] if ahead else lines


def _note(node: "NodeStatus", now: float) -> str:
    left_s = health.seconds_left(node, now)
    if left_s is None:
        return node.reason
    return f"will be taken in {left_s:.0f} s" + (f"; {node.reason}" if node.reason else "")


def _node_cells(node: "NodeStatus", plan: Plan | None) -> list[str]:
    return [
        node.node_id,
        node.state,
        node.zone,
        _workers(node),
        _stages((place for worker in node.workers for place in worker.hosts), plan),
        _stages((place for worker in node.workers for place in worker.shadows), plan),
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
