"""The latest steps that a worker saw committed, for peers that lack the last one and a coordinator that was away."""

from collections import deque
from collections.abc import Iterator

from bamboo_trainer.plan import StepSummary

COMMITS_KEPT = 1024
"""Steps that a new reporter can tell of when the coordinator was away and the old reporter's node is lost."""


class CommittedSteps:
    """In order of steps."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, StepSummary]] = deque(maxlen=COMMITS_KEPT)

    def add(self, plan_generation: int, summary: StepSummary) -> None:
        self._steps.append((plan_generation, summary))

    def forget_from(self, step: int) -> None:
        """It and those after it are to be run again."""
        while self._steps and self._steps[-1][1].step >= step:
            self._steps.pop()

    def after(self, step: int) -> Iterator[tuple[int, StepSummary]]:
        """Those later than ``step``, each with the generation of the plan under which it was committed."""
        return ((generation, summary) for generation, summary in self._steps if summary.step > step)

    def summary_of(self, step: int) -> StepSummary | None:
        """Of the newest one, if that is it."""
        newest = self._steps[-1][1] if self._steps else None
        return newest if newest is not None and newest.step == step else None
