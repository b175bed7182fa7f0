"""What a run's steps sent from one zone to another, which some clouds charge for. docs/money.md."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from bamboo_trainer.control import LayerCost
from bamboo_trainer.plan import Plan, PlanKind, node_id_of
from bamboo_trainer.traffic import step_traffic
from pydantic import TypeAdapter
from sqlalchemy import Connection, select

from bamboo_cli.coordinator import schema


def crossing_bytes(
    connection: Connection, run_id: str, costs: Sequence[LayerCost], num_committed: int, zones: Mapping[str, str]
) -> int:
    """Estimated: by the plans in force at step boundaries. ``zones``: by node. Of steps before ``num_committed``."""
    if not costs or len(set(zones.values())) < 2:
        return 0
    query = select(schema.plans.c.plan).where(schema.plans.c.run_id == run_id).order_by(schema.plans.c.generation)
    decoder: TypeAdapter[Plan] = TypeAdapter(Plan)
    plans = [decoder.validate_python(plan) for plan in connection.execute(query).scalars()]
    boundaries = [plan for plan in plans if plan.kind is PlanKind.BOUNDARY]
    ends = [*(plan.first_step for plan in boundaries), num_committed]
    return sum(
        max(0, end - begin) * _crossing_a_step(plan, costs, zones)
        for plan, (begin, end) in zip(boundaries, pairwise(ends), strict=True)
    )


def _crossing_a_step(plan: Plan, costs: Sequence[LayerCost], zones: Mapping[str, str]) -> int:
    return sum(
        num_bytes
        for (sender, receiver), num_bytes in step_traffic(plan, costs).items()
        if zones.get(node_id_of(sender)) != zones.get(node_id_of(receiver))
    )
