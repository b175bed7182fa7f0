"""How a node can be recovered from, and the worst that a job's protection promises. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from bamboo_trainer.plan import Mode


class Rung(StrEnum):
    """Of the ladder of recovery, the cheapest first."""

    HANDED_OVER = "handed over at a step boundary"
    SHADOW = "failover by its shadow"
    OTHER_PIPELINE = "failover by another pipeline"
    RUN_AGAIN = "step run again from live layers"
    RESTORED = "restore from a checkpoint"

    def is_worse_than(self, other: "Rung") -> bool:
        rungs = list(Rung)
        return rungs.index(self) > rungs.index(other)


_WORDS = {
    Rung.OTHER_PIPELINE: "a loss without warning is made good within the step, and no step is run again",
    Rung.RUN_AGAIN: "after a loss without warning the step in flight is run again, and no committed one",
    Rung.RESTORED: "a loss without warning goes back to the newest complete checkpoint, and the steps since run again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """``worst``: the last rung that a single loss without warning may need. A notice in time needs only the first."""

    worst: Rung

    @property
    def words(self) -> str:
        return _WORDS[self.worst]


def promise_of(mode: Mode, *, num_pipelines: int, num_stages: int) -> Promise:
    """Of a single loss that meets a whole plan. A stage needs another one before it to have a shadow."""
    has_shadow = mode.has_shadows and num_stages >= 2
    if mode.survives_within_step and (has_shadow or num_pipelines >= 2):
        return Promise(worst=Rung.OTHER_PIPELINE)
    if has_shadow or num_pipelines >= 2:
        return Promise(worst=Rung.RUN_AGAIN)
    return Promise(worst=Rung.RESTORED)
