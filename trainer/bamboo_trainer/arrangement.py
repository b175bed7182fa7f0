"""The shape of a plan before anybody is placed: the cut of each pipeline, its microbatches, each stage's protection.

Pipelines may have unequal numbers of stages: gradients are summed by layer, so each may cut the layers as it likes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo_trainer.plan import Mode, Pipeline, Plan, StagePlan, WorkerId, split_microbatches
from bamboo_trainer.redundancy import shadow_indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """``cuts``, ``microbatches`` and ``modes`` by pipeline; cuts and modes by stage inside each."""

    cuts: tuple[tuple[range, ...], ...]
    microbatches: tuple[range, ...]
    modes: tuple[tuple[Mode, ...], ...]
    level: int

    @property
    def num_pipelines(self) -> int:
        return len(self.cuts)

    @property
    def num_stages(self) -> tuple[int, ...]:
        """Of each pipeline."""
        return tuple(map(len, self.cuts))

    @property
    def num_hosts(self) -> int:
        return sum(self.num_stages)

    @property
    def shape(self) -> str:
        """``2 x 3``, or ``4 + 3`` where pipelines are unequal."""
        equal = len(set(self.num_stages)) == 1
        return f"{self.num_pipelines} x {self.num_stages[0]}" if equal else " + ".join(map(str, self.num_stages))

    def shadow_indices(self, pipeline_index: int, stage_index: int) -> tuple[int, ...]:
        """The stages of the pipeline whose workers shadow this one; none where its mode has no shadows."""
        if not self.modes[pipeline_index][stage_index].has_shadows:
            return ()
        return shadow_indices(stage_index, len(self.cuts[pipeline_index]), self.level)

    def shadowed_by(self, pipeline_index: int, stage_index: int) -> tuple[int, ...]:
        """The stages that the worker of this one shadows."""
        stages = range(len(self.cuts[pipeline_index]))
        return tuple(s for s in stages if stage_index in self.shadow_indices(pipeline_index, s))


def uniform(
    cuts: Sequence[Sequence[range]], num_microbatches: int, mode: Mode, level: int, microbatches: Sequence[range] = ()
) -> Arrangement:
    """Every stage protected alike; ``microbatches`` as even as can be unless they are given."""
    return Arrangement(
        cuts=tuple(map(tuple, cuts)),
        microbatches=tuple(microbatches) or split_microbatches(num_microbatches, len(cuts)),
        modes=tuple((mode,) * len(cut) for cut in cuts),
        level=level,
    )


def arrangement_of(plan: Plan) -> Arrangement:
    """Of a plan in force, with the level that its best shadowed stage has."""
    return Arrangement(
        cuts=tuple(tuple(stage.layers for stage in p.stages) for p in plan.pipelines),
        microbatches=tuple(p.microbatches for p in plan.pipelines),
        modes=tuple(tuple(stage.mode for stage in p.stages) for p in plan.pipelines),
        level=max((len(stage.shadows) for stage in plan.stages()), default=0),
    )


def staff(arrangement: Arrangement, rows: Sequence[Sequence[WorkerId]]) -> tuple[Pipeline, ...]:
    """``rows``: the host of each stage, by pipeline."""
    return tuple(
        Pipeline(
            first_microbatch=arrangement.microbatches[d].start,
            end_microbatch=arrangement.microbatches[d].stop,
            stages=tuple(
                StagePlan(
                    pipeline_index=d,
                    stage_index=s,
                    first_layer=layers.start,
                    end_layer=layers.stop,
                    host=rows[d][s],
                    shadows=tuple(rows[d][i] for i in arrangement.shadow_indices(d, s)),
                    mode=arrangement.modes[d][s],
                )
                for s, layers in enumerate(cut)
            ),
        )
        for d, cut in enumerate(arrangement.cuts)
    )


def build_pipelines(
    rows: Sequence[Sequence[WorkerId]], cuts: Sequence[Sequence[range]], num_microbatches: int, mode: Mode, level: int
) -> tuple[Pipeline, ...]:
    """``rows``: the host of each stage, by pipeline; ``cuts``: the layers of each. A mode without shadows has none."""
    return staff(uniform(cuts, num_microbatches, mode, level), rows)
