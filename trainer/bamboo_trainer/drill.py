"""Failures on purpose, placed by (step, action), never by clock. Only a job with a drill installs these wrappers.

A place strikes once in a run, also when the step is run again by another worker: whoever comes first takes the claim
file beside the checkpoints (drills are for the local cloud, where that folder is shared).
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from bamboo_trainer import control
from bamboo_trainer.compute import Compute
from bamboo_trainer.executor import Executor, Report, Send
from bamboo_trainer.plan import NodeId, Plan, PlanKind, WorkerId
from bamboo_trainer.schedule import Action, Kind
from bamboo_trainer.wrapping import Wrapped

PLACES = ("REDUCE", "COMMIT", "OPTIMIZER", "CHECKPOINT", "TAKEOVER")

Strike = Callable[[control.Kill], None]


class Claims:
    """One file a place, made exclusively."""

    def __init__(self, checkpoint_url: str) -> None:
        self._folder = Path(urlsplit(checkpoint_url).path) / "drill"

    def taken(self) -> frozenset[int]:
        """Indices of the kills that have struck."""
        return frozenset(int(file.name) for file in self._folder.glob("[0-9]*"))

    def take(self, index: int) -> bool:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            (self._folder / str(index)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class DrillExecutor(Wrapped[Executor]):
    """An ``Executor`` whose worker is struck when it reaches a place of the drill."""

    def __init__(
        self,
        node_id: NodeId,
        strike: Strike,
        worker_id: WorkerId,
        spec: control.TrainingSpec,
        compute: Compute,
        send: Send,
        report: Report,
    ) -> None:
        super().__init__(Executor(worker_id, spec, compute, send, report))
        self._node_id = node_id
        self._strike_now = strike
        self._kills = dict(enumerate(spec.kills))
        self._claims = Claims(spec.checkpoint_url)
        self._took_over = False

    def adopt(self, plan: Plan) -> None:
        before = self._num_hosted()
        self._inner.adopt(plan)
        self._took_over = plan.kind is PlanKind.FAILOVER and self._num_hosted() > before

    def perform(self, action: Action) -> None:
        step = self._inner.step
        self._strike_at(str(action), step, action.pipeline_index)
        if self._took_over:
            self._strike_at("TAKEOVER", step)
        if action.kind is Kind.REDUCE:
            self._strike_at("REDUCE", step)
        self._inner.perform(action)
        if action.kind is Kind.COMMIT:
            self._strike_at("OPTIMIZER", step)
        if action.kind is Kind.SAVE:
            self._strike_at("CHECKPOINT", step - 1)

    def _num_hosted(self) -> int:
        plan = self._inner.plan
        return len(plan.hosted_by(self._inner.worker_id)) if plan else 0

    def _strike_at(self, place: str, step: int, pipeline_index: int | None = None) -> None:
        for index, kill in list(self._kills.items()):
            if kill.step == step and kill.action == place and self._is_victim(kill, pipeline_index):
                del self._kills[index]
                if self._claims.take(index):
                    self._strike_now(kill)

    def _is_victim(self, kill: control.Kill, pipeline_index: int | None) -> bool:
        if kill.node_id is not None:
            return kill.node_id == self._node_id
        if pipeline_index is not None and pipeline_index != (kill.pipeline_index or 0):
            return False
        plan = self._inner.plan
        if plan is None or kill.stage_index is None:
            return False
        place, me = (kill.pipeline_index or 0, kill.stage_index), self._inner.worker_id
        stages = [stage for stage in plan.stages() if stage.place == place]
        helps = pipeline_index is not None and any(part.host == me for stage in stages for part in stage.parts)
        return helps or any(stage.host == me for stage in stages)


def strike(kill: control.Kill, cut: Callable[[], None]) -> None:
    """What the place says: the whole node vanishes or freezes, the worker freezes, or its links are cut for good."""
    match kill.how:
        case "kill":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        case "freeze_node":
            os.killpg(os.getpgid(0), signal.SIGSTOP)
        case "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "cut":
            cut()
