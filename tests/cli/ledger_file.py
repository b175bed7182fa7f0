"""State files with a long past: instances, prices, runs' intervals and steps, as many as one likes."""

from collections.abc import Sequence
from pathlib import Path

from bamboo_trainer.control import LayerCost, TrainingSpec
from bamboo_trainer.plan import Plan
from pydantic import TypeAdapter
from sqlalchemy import insert, text

from bamboo_cli.coordinator import schema, store
from bamboo_cli.coordinator.rows import encode_row
from bamboo_cli.coordinator.run_entities import Progress, Run
from bamboo_cli.coordinator.settings import RunSpec
from bamboo_cli.coordinator.states import RunState

ZONES = ("a", "b", "c")
HOUR_S = 3600.0


def make(
    cluster_dir: Path,
    *,
    begin: float,
    days: int,
    num_nodes: int,
    prices_a_day: int,
    num_steps: int,
    num_runs: int = 1,
    cloud: str = "local",
    job: dict[str, object] | None = None,
    costs: tuple[LayerCost, ...] = (),
    plans: Sequence[Plan] = (),
) -> Path:
    """Every node is replaced once a day; runs follow each other without a gap; all is over at the end."""
    store.create_cluster(
        cluster_dir, name=cluster_dir.name, cloud=cloud, job_text="", job=job or {}, wanted_nodes=num_nodes
    )
    path, end = store.state_path(cluster_dir), begin + days * 24 * HOUR_S
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        connection.execute(
            insert(schema.instances), [_instance(d, n, begin) for d in range(days) for n in range(num_nodes)]
        )
        connection.execute(
            insert(schema.prices),
            [_price(zone, number, begin, prices_a_day) for zone in ZONES for number in range(days * prices_a_day)],
        )
        for number in range(num_runs):
            span = (begin + (end - begin) * number / num_runs, begin + (end - begin) * (number + 1) / num_runs)
            for name, entity in _run(f"r{number}", *span, num_steps // num_runs, costs).items():
                connection.execute(insert(schema.machine).values(name=name, body=encode_row(name, entity)))
            connection.execute(
                text(_STEPS), {"run": f"r{number}", "n": num_steps // num_runs, "b": span[0], "e": span[1]}
            )
            if number == 0 and plans:
                connection.execute(insert(schema.plans), [_plan(f"r{number}", plan, span[0]) for plan in plans])
    engine.dispose()
    return path


def _plan(run_id: str, plan: Plan, at: float) -> dict[str, object]:
    body = TypeAdapter(Plan).dump_python(plan, mode="json")
    return {"generation": plan.generation, "run_id": run_id, "plan": body, "reason": "", "made_at": at}


_STEPS = """
WITH RECURSIVE numbers(step) AS (SELECT 0 UNION ALL SELECT step + 1 FROM numbers WHERE step + 1 < :n)
INSERT INTO steps
    (run_id, step, generation, loss, gradient_norm, learning_rate, step_s, num_samples, num_tokens, committed_at)
SELECT :run, step, 1, 1.0, 1.0, 0.001, (:e - :b) / :n, 8, 800, :b + (step + 1) * (:e - :b) / :n FROM numbers
"""


def _instance(day: int, node: int, begin: float) -> dict[str, object]:
    launched_at = begin + day * 24 * HOUR_S + node
    return {
        "token": f"t{day}-{node}",
        "node_id": f"n{day * 1000 + node + 1}",
        "instance_type": "g5.xlarge",
        "zone": ZONES[node % len(ZONES)],
        "intended_at": launched_at,
        "instance_id": f"i-{day}-{node}",
        "launched_at": launched_at,
        "ended_at": launched_at + 23 * HOUR_S,
        "end_reason": "preempted",
        "is_spot": True,
    }


def _price(zone: str, number: int, begin: float, prices_a_day: int) -> dict[str, object]:
    return {
        "zone": zone,
        "instance_type": "g5.xlarge",
        "from_at": begin + number * 24 * HOUR_S / prices_a_day,
        "spot_microusd_per_hour": 300_000 + 1000 * (number % 97),
        "on_demand_microusd_per_hour": 1_006_000,
        "price_source": "live",
    }


def _run(
    run_id: str, started_at: float, ended_at: float, num_steps: int, costs: tuple[LayerCost, ...]
) -> dict[str, Run | Progress]:
    training = TrainingSpec(
        run_id=run_id,
        recipe="mlp",
        recipe_options={},
        num_steps=num_steps,
        num_microbatches=4,
        microbatch_size=2,
        seed=0,
        checkpoint_url="file:///nowhere",
        checkpoint_every=100,
    )
    run = Run(
        spec=RunSpec(training=training, num_pipelines=1, num_stages=1),
        state=RunState.DONE,
        since=ended_at,
        started_at=started_at,
        ended_at=ended_at,
        costs=costs,
    )
    progress = Progress(
        run_id=run_id, committed_step=num_steps - 1, num_samples=8 * num_steps, num_tokens=800 * num_steps
    )
    return {f"run/{run_id}": run, f"progress/{run_id}": progress}
