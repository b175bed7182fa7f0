"""The dead-man's switch: an agent that nobody has come back to saves its run's work and ends its machine.

Every agent of a cluster does so by itself. A wish to stop is enough for all members of a plan to stop at one step
boundary, so what they save is of the same step, though they do not talk to each other here.
"""

import asyncio
import logging
import subprocess
from collections.abc import Callable

from bamboo_trainer.control import Adopt, LayerSaved, Prepare, Quiesce, Save, Stopped, ToWorker
from bamboo_trainer.plan import Plan, WorkerId

from bamboo_agent import farewell
from bamboo_agent.config import AgentConfig
from bamboo_agent.farewell import Farewell
from bamboo_agent.messages import AgentMessage, WorkerExited, WorkerSaid

SAVE_S = 600.0
"""For the checkpoint; then the machine is ended without one."""
LOOK_S = 5.0
AGAIN_S = 60.0
"""Between two tries to end the machine."""
COMMAND_S = 30.0

log = logging.getLogger(__name__)


class Orphan:
    def __init__(
        self,
        *,
        config: Callable[[], AgentConfig],
        alone_s: Callable[[], float],
        tell: Callable[[WorkerId, ToWorker], None],
        kept: Callable[[], Farewell],
        save_s: float = SAVE_S,
    ) -> None:
        """``alone_s``: how long there has been no link; ``kept``: what the coordinator has not acknowledged."""
        self._config = config
        self._alone_s = alone_s
        self._tell = tell
        self._kept = kept
        self._save_s = save_s
        self._urls: dict[WorkerId, str] = {}
        self._plans: dict[WorkerId, Plan] = {}
        self._stopped: dict[WorkerId, Stopped] = {}
        self._saved: dict[WorkerId, set[tuple[int, int]]] = {}
        """(step, layer), since the last goodbye began."""

    # --- what passes by -----------------------------------------------------------------------------------------

    def told(self, worker_id: WorkerId, message: ToWorker) -> None:
        match message:
            case Prepare(spec=spec):
                self._urls[worker_id] = spec.checkpoint_url
            case Adopt(plan=plan):
                self._plans[worker_id] = plan

    def said(self, message: AgentMessage) -> None:
        match message:
            case WorkerExited(worker_id=worker_id):
                self._plans.pop(worker_id, None)
                self._urls.pop(worker_id, None)
            case WorkerSaid(worker_id=worker_id, message=Stopped() as stopped):
                self._stopped[worker_id] = stopped
            case WorkerSaid(worker_id=worker_id, message=LayerSaved() as saved) if worker_id in self._saved:
                self._saved[worker_id].add((saved.checkpoint_step, saved.layer))

    # --- the switch ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever."""
        while True:
            config = self._config()
            await asyncio.sleep(min(LOOK_S, config.orphan_after_s / 4) if config.orphan_after_s else LOOK_S)
            if self._is_alone(config):
                await self._end(config)

    def _is_alone(self, config: AgentConfig) -> bool:
        return 0 < config.orphan_after_s <= self._alone_s()

    async def _end(self, config: AgentConfig) -> None:
        log.error("no coordinator for %.0f s: this machine saves its work and ends", self._alone_s())
        try:
            async with asyncio.timeout(self._save_s):
                await self._save()
        except TimeoutError:
            log.error("the checkpoint was not written within %.0f s", self._save_s)
        await asyncio.to_thread(self._say_farewell)
        if not self._is_alone(config):
            log.info("a coordinator is there again: this machine goes on")
            return
        await _shut_down(config.shutdown_command)
        await asyncio.sleep(AGAIN_S)

    async def _save(self) -> None:
        """Returns when what this machine's workers have to save of one step is durable."""
        members = {worker_id: plan for worker_id, plan in self._plans.items() if worker_id in plan.worker_ids()}
        self._stopped.clear()
        self._saved = {worker_id: set() for worker_id in members}
        for worker_id, plan in members.items():
            self._tell(worker_id, Quiesce(generation=plan.generation))
        await self._until(lambda: all(w in self._stopped for w in members if w in self._plans))
        wanted: dict[WorkerId, set[tuple[int, int]]] = {}
        for worker_id, plan in members.items():
            if worker_id in self._plans:
                step = self._stopped[worker_id].committed_step
                wanted[worker_id] = {(step, layer) for layer in plan.saved_by(worker_id)}
                self._tell(worker_id, Save(generation=plan.generation, step=step))
        await self._until(lambda: all(layers <= self._saved[w] for w, layers in wanted.items() if w in self._plans))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.1)

    def _say_farewell(self) -> None:
        for url in set(self._urls.values()):
            try:
                farewell.leave(url, self._kept())
            except OSError as error:
                log.error("what was not told yet cannot be left in %s: %s", url, error)


async def _shut_down(command: tuple[str, ...]) -> None:
    log.error("ending this machine: %s", " ".join(command))
    try:
        ended = await asyncio.to_thread(subprocess.run, command, stdin=subprocess.DEVNULL, timeout=COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.error("this machine could not be ended: %r; trying again", error)
    else:
        level = logging.ERROR if ended.returncode else logging.INFO
        log.log(level, "it ended with exit code %d", ended.returncode)
