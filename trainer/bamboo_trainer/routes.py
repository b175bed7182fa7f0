"""Who makes a datum and who needs it, under a plan. Pure; see the table in docs/step.md."""

from collections.abc import Sequence

from bamboo_trainer.compute import Unit
from bamboo_trainer.plan import Mode, Part, Plan, WorkerId
from bamboo_trainer.schedule import Key, contribution_key


class Routes:
    """Look-ups of one plan, made once per generation."""

    def __init__(self, plan: Plan, units: Sequence[Unit]) -> None:
        self._plan = plan
        self._units = units
        self.num_chunks = plan.num_pipelines
        self._host_of = {
            (d, layer): stage.host
            for d, pipeline in enumerate(plan.pipelines)
            for stage in pipeline.stages
            for layer in stage.layers
        }
        self._contributor = {
            (d, layer): plan.parts_of(stage)[-1].host
            for d, pipeline in enumerate(plan.pipelines)
            for stage in pipeline.stages
            for layer in stage.layers
        }
        holders = {layer: plan.holders_of(layer) for layer in range(plan.num_layers)}
        self._holders = [tuple(dict.fromkeys(w for layer in unit.layers for w in holders[layer])) for unit in units]

    def receivers(self, key: Key) -> tuple[WorkerId, ...]:
        match key.kind:
            case "F":
                return (self._plan.stage(key.a, key.b).host_of(key.c),)
            case "B":
                stage = self._plan.stage(key.a, key.b)
                return stage.holders if stage.mode is Mode.FULL else (stage.host_of(key.c),)
            case "P":
                return tuple(p.host for p in self._parts(key) if p.first_microbatch == key.c)
            case "C":
                return (self.reducer(key.a, key.b),)
            case "R":
                return self._holders[key.a]
        raise ValueError(f"no such datum: {key}")

    def producer(self, key: Key) -> WorkerId | None:
        """None: the plan has no use for it."""
        match key.kind:
            case "F":
                return self._plan.stage(key.a, key.b - 1).host_of(key.c)
            case "B":
                return self._plan.stage(key.a, key.b + 1).host_of(key.c)
            case "P":
                return next((p.host for p in self._parts(key) if p.end_microbatch == key.c), None)
            case "C":
                return self._contributor[key.c, key.d]
            case "R":
                return self.reducer(key.a, key.b)
        raise ValueError(f"no such datum: {key}")

    def _parts(self, key: Key) -> tuple[Part, ...]:
        """Of the stage that a partial sum is of."""
        return self._plan.parts_of(self._plan.stage_of_layer(key.b, key.a))

    def reducer(self, unit_index: int, chunk: int) -> WorkerId:
        """Sums chunk c of a unit: the host of the unit's first layer in pipeline c."""
        return self._host_of[chunk, self._units[unit_index].layers[0]]

    def contributions(self, unit_index: int, chunk: int) -> tuple[Key, ...]:
        """In the order in which they are summed: pipelines, and the unit's layers inside each."""
        return tuple(
            contribution_key(unit_index, chunk, d, layer)
            for d in range(self._plan.num_pipelines)
            for layer in self._units[unit_index].layers
        )

    def units_of(self, layer: int) -> tuple[int, ...]:
        """Indices of the units that touch a layer."""
        return tuple(unit.index for unit in self._units if layer in unit.layers)

    def units_held_by(self, worker_id: WorkerId) -> tuple[Unit, ...]:
        return tuple(unit for unit in self._units if worker_id in self._holders[unit.index])

    def units_reduced_by(self, worker_id: WorkerId) -> tuple[tuple[Unit, int], ...]:
        return tuple(
            (unit, chunk)
            for unit in self._units
            for chunk in range(self.num_chunks)
            if self.reducer(unit.index, chunk) == worker_id
        )
