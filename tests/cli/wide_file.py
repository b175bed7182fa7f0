"""State files of large clusters in the middle of a run, as a coordinator leaves them."""

from dataclasses import replace
from pathlib import Path

from bamboo_trainer.arrangement import build_pipelines
from bamboo_trainer.control import LayerCost, TrainingSpec
from bamboo_trainer.partition import cut
from bamboo_trainer.plan import Fetch, Member, Mode, NodeId, Plan, PlanKind, WorkerId, node_id_of
from bamboo_trainer.redundancy import fail_over
from sqlalchemy import insert, text, update

from bamboo_cli.coordinator import schema, store
from bamboo_cli.coordinator.entities import Accelerator, Cluster, Node, Worker
from bamboo_cli.coordinator.rows import encode_row
from bamboo_cli.coordinator.run_entities import Progress, Run
from bamboo_cli.coordinator.settings import RunSpec
from bamboo_cli.coordinator.states import NodeReason, NodeState, RunState, WorkerState

ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
TYPE = "g5.xlarge"
RUN = "wide-1"
HOUR_S = 3600.0
LAYERS = 48


def make(
    cluster_dir: Path,
    *,
    now: float,
    num_pipelines: int = 25,
    num_stages: int = 8,
    num_standbys: int = 0,
    num_gone: int = 0,
    num_losses: int = 0,
    num_steps: int = 2_000,
    hours: float = 10.0,
    num_events: int = 200,
) -> Path:
    """All is well; ``num_gone`` nodes were lost and replaced before, and ``num_losses`` more are counted. Two thirds of
    the steps are committed.
    """
    store.create_cluster(
        cluster_dir, name=cluster_dir.name, cloud="aws", job_text="", job={}, wanted_nodes=num_pipelines * num_stages
    )
    begin, num_hosts = now - hours * HOUR_S, num_pipelines * num_stages
    names = [NodeId(f"n{number + 1}") for number in range(num_gone + num_hosts + num_standbys)]
    gone, hosts, standbys = names[:num_gone], names[num_gone : num_gone + num_hosts], names[num_gone + num_hosts :]
    plan = plan_of(hosts, num_pipelines, num_stages)
    run = run_of(plan, num_steps, begin)
    progress = Progress(
        run_id=RUN,
        committed_step=num_steps * 2 // 3,
        loss=2.1,
        first_loss=9.7,
        num_samples=num_steps * 2 // 3 * 1024,
        preemptions=num_gone + num_losses,
        failovers=num_gone + num_losses,
        reconfigurations=num_gone,
        pause_s=4.3 * (num_gone + num_losses),
        step_seconds=(hours * HOUR_S / (num_steps * 2 // 3),),
    )
    entities: dict[str, object] = {f"run/{RUN}": run, f"progress/{RUN}": progress}
    entities["cluster"] = Cluster(generation=1, num_named=len(names), run_id=RUN, num_taken=num_gone)
    for state, listed in ((NodeState.ENDED, gone), (NodeState.ACTIVE, hosts), (NodeState.STANDBY, standbys)):
        entities |= {f"node/{name}": node_of(name, state, begin) for name in listed}
    path = store.state_path(cluster_dir)
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        connection.execute(
            insert(schema.machine),
            [{"name": name, "body": encode_row(name, entity)} for name, entity in entities.items()],  # type: ignore[arg-type]
        )
        connection.execute(insert(schema.beats), [{"node_id": n, "last_beat_at": now} for n in (*hosts, *standbys)])
        connection.execute(insert(schema.instances), [_instance(n, begin, n in gone) for n in names])
        connection.execute(
            insert(schema.prices), [_price(z, begin + h * HOUR_S) for z in ZONES for h in range(int(hours))]
        )
        connection.execute(update(schema.cluster).values(heartbeat_at=now, coordinator_pid=4242, created_at=begin))
        span = {"run": RUN, "n": num_steps * 2 // 3 + 1, "b": begin, "e": now}
        connection.execute(text(_STEPS), span)
        connection.execute(text(_EVENTS), span | {"n": num_events})
    engine.dispose()
    return path


_STEPS = """
WITH RECURSIVE numbers(step) AS (SELECT 0 UNION ALL SELECT step + 1 FROM numbers WHERE step + 1 < :n)
INSERT INTO steps
    (run_id, step, generation, loss, gradient_norm, learning_rate, step_s, num_samples, num_tokens, committed_at)
SELECT :run, step, 1, 2.1 + 7.6 / (1 + step / 50.0), 1.0, 0.001, 0.98 * (:e - :b) / :n, 1024, 0,
    :b + (step + 1) * (:e - :b) / :n
FROM numbers
"""
_EVENTS = """
WITH RECURSIVE numbers(number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number + 1 < :n)
INSERT INTO events (at, kind, run_id, step, text, numbers)
SELECT :b + (number + 1) * (:e - :b) / :n, 'checkpoint', :run, number,
    'the checkpoint of step ' || number || ' is complete', '{}'
FROM numbers
"""


def worker_id(node_id: NodeId) -> WorkerId:
    return WorkerId(f"{node_id}/1")


def plan_of(hosts: list[NodeId], num_pipelines: int, num_stages: int) -> Plan:
    """The run's first, in which every layer comes from the seed."""
    workers = [worker_id(host) for host in hosts]
    rows = [workers[d * num_stages : (d + 1) * num_stages] for d in range(num_pipelines)]
    ranges = cut([1.0] * LAYERS, num_stages)
    pipelines = build_pipelines(rows, [ranges] * num_pipelines, 16 * num_pipelines, Mode.BUBBLE, 1)
    members = tuple(
        Member(worker_id=w, node_id=node_id_of(w), address=f"10.0.{i // 250}.{i % 250 + 1}", port=7000)
        for i, w in enumerate(workers)
    )
    plan = Plan(generation=1, kind=PlanKind.BOUNDARY, first_step=0, pipelines=pipelines, members=members)
    fetches = tuple(Fetch(worker_id=w, layer=x, source=None) for w in workers for x in plan.layers_of(w))
    return replace(plan, fetches=fetches, reason="the run begins")


def without(plan: Plan, lost: NodeId) -> Plan:
    """After a failover."""
    found = fail_over(plan, [worker_id(lost)], plan.generation + 1)
    assert found is not None
    return found


def run_of(plan: Plan, num_steps: int, begin: float) -> Run:
    training = TrainingSpec(
        run_id=RUN,
        recipe="gpt2",
        recipe_options={"size": "xl"},
        num_steps=num_steps,
        num_microbatches=plan.num_microbatches,
        microbatch_size=2,
        seed=0,
        checkpoint_url="s3://bucket/wide-1",
        checkpoint_every=100,
    )
    cost = LayerCost(name="block", forward_s=0.01, backward_s=0.02, parameter_bytes=1 << 27, activation_bytes=1 << 22)
    return Run(
        spec=RunSpec(training=training, num_pipelines=plan.num_pipelines, num_stages=len(plan.pipelines[0].stages)),
        state=RunState.RUNNING,
        since=begin,
        started_at=begin,
        costs=(cost,) * LAYERS,
        plan=plan,
        base_generation=1,
        settled=True,
        adopted=plan.worker_ids(),
    )


def node_of(node_id: NodeId, state: NodeState, begin: float, **changes: object) -> Node:
    number, live = int(node_id[1:]), state is not NodeState.ENDED
    worker = Worker(worker_id=worker_id(node_id), state=WorkerState.PREPARED, since=begin, device="NVIDIA A10G")
    node = Node(
        node_id=node_id,
        state=state,
        reason=NodeReason.NONE if live else NodeReason.PREEMPTED,
        since=begin,
        zone=ZONES[number % len(ZONES)],
        token=f"wide-{node_id}-1",
        num_creates=1,
        instance_id=f"i-{number:017x}",
        address=f"10.0.{number // 250}.{number % 250 + 1}",
        joined_at=begin,
        boot_id=f"boot-{number}",
        incarnation=1,
        accelerators=(Accelerator(worker=worker if live else None, incarnation=1),),
        taken=not live,
    )
    return replace(node, **changes)  # type: ignore[arg-type]


def _instance(node_id: NodeId, begin: float, gone: bool) -> dict[str, object]:
    number = int(node_id[1:])
    return {
        "token": f"wide-{node_id}-1",
        "node_id": node_id,
        "instance_type": TYPE,
        "zone": ZONES[number % len(ZONES)],
        "intended_at": begin,
        "instance_id": f"i-{number:017x}",
        "launched_at": begin,
        "ended_at": begin + HOUR_S if gone else None,
        "end_reason": "preempted" if gone else "",
        "is_spot": True,
    }


def _price(zone: str, at: float) -> dict[str, object]:
    return {
        "zone": zone,
        "instance_type": TYPE,
        "from_at": at,
        "spot_microusd_per_hour": 302_000,
        "on_demand_microusd_per_hour": 1_006_000,
        "price_source": "live",
    }
