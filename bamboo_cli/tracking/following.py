"""A thread for each tracker, which carries over to it what is on record. It can fail and hang as it likes: nobody waits
for it but the end of the coordinator, and that not for long."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine

from bamboo_cli.coordinator.events import StoryKind, Tell
from bamboo_cli.coordinator.run_entities import Run
from bamboo_cli.coordinator.settings import TrackerWish
from bamboo_cli.coordinator.store import open_for_reading, reading, state_path
from bamboo_cli.errors import BambooError
from bamboo_cli.tracking import position as positions
from bamboo_cli.tracking import record
from bamboo_cli.tracking.outside import Outside
from bamboo_cli.tracking.points import Curve, Tracker
from bamboo_cli.tracking.position import Position
from bamboo_cli.tracking.tensorboard import TensorBoard

LOOK_S = 2.0
RETRY_S = 30.0
HOLE_S = 20.0
"""How long a step is waited for of which nobody has told."""
END_S = 10.0
"""For all that is left to be told when the coordinator ends."""

TENSORBOARD = "tensorboard"

log = logging.getLogger(__name__)

Warn = Callable[[str, str], None]
"""With the run's id and one sentence."""


class Following:
    """Make it inside a running event loop. ``tell``: a line of the story, once for each trouble of a tracker."""

    def __init__(self, cluster_dir: Path, tell: Callable[[Tell], None]) -> None:
        self._cluster_dir, self._tell = cluster_dir, tell
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._threads: dict[tuple[str, str], threading.Thread] = {}

    async def watch(self, newest_run: Callable[[], Run | None]) -> None:
        """For ever: also the run that ended while no coordinator was there is told to its end."""
        while True:
            if (run := newest_run()) is not None:
                self._follow(run)
            await asyncio.sleep(LOOK_S / 2)

    async def end(self) -> None:
        """When all is told that is on record, or after ``END_S``."""
        self._stop.set()
        deadline = time.monotonic() + END_S
        for thread in self._threads.values():
            await asyncio.to_thread(thread.join, max(0.0, deadline - time.monotonic()))

    def _follow(self, run: Run) -> None:
        for wish in run.spec.trackers:
            if (run.run_id, wish.kind) not in self._threads:
                follower = Follower(self._cluster_dir, run.run_id, wish, self._warn)
                name = f"tracker-{wish.kind}"
                # a daemon: one that hangs must not keep the coordinator from ending
                thread = threading.Thread(target=follower.run, args=(self._stop,), name=name, daemon=True)
                self._threads[run.run_id, wish.kind] = thread
                thread.start()

    def _warn(self, run_id: str, text: str) -> None:
        line = Tell(kind=StoryKind.TRACKER, text=text, run_id=run_id)
        if not self._stop.is_set():  # nobody writes any more; the next coordinator tells it
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tell, line)


class Follower:
    """One tracker, one run."""

    def __init__(self, cluster_dir: Path, run_id: str, wish: TrackerWish, warn: Warn) -> None:
        self._cluster_dir, self._run_id, self._wish, self._warn = cluster_dir, run_id, wish, warn
        self._tracker: Tracker = TensorBoard(cluster_dir) if wish.kind == TENSORBOARD else Outside(wish, cluster_dir)
        self._position: Position | None = None
        """None: the tracker has not begun, or failed."""
        self._engine: Engine | None = None
        self._awaited: tuple[int, float] | None = None
        self._is_told = False

    def run(self, stop: threading.Event) -> None:
        """Until the run is over and all of it told, or until ``stop``, after which is looked once more."""
        is_last_look = False
        while not self.attempt() and not is_last_look:
            stop.wait(LOOK_S if self._position is not None else RETRY_S)
            is_last_look = stop.is_set()
        self.close()

    def attempt(self) -> bool:
        """``look``, but whatever goes wrong is told, and is tried anew the next time."""
        try:
            self._engine = self._engine or open_for_reading(state_path(self._cluster_dir))
            return self.look(self._engine)
        except Exception as error:  # noqa: BLE001 - whatever a tracker's package raises, training goes on
            self._failed(error)
            return False

    def close(self) -> None:
        self._tracker.close()
        if self._engine is not None:
            self._engine.dispose()

    def look(self, engine: Engine) -> bool:
        """Tell all that is new. True: the run is over, and has been told to its end."""
        position = self._position = self._position or self._begin(engine)
        while not position.over:
            with reading(engine) as connection:
                batch = record.read(
                    connection,
                    record.run_of(connection, self._run_id),
                    position,
                    rewinds=self._tracker.rewinds,
                    patient=self._is_patient(),
                )
            self._note_hole(batch.awaited)
            if not batch.is_empty:
                self._tracker.tell(batch.points, batch.notes, batch.rewind_to)
            if batch.is_last:
                self._tracker.end(batch.state)
            if batch.position != position:
                positions.store(self._cluster_dir, self._wish.kind, self._run_id, batch.position)
                position = self._position = batch.position
            self._is_told = False
            if batch.is_empty:
                break
        return position.over

    def _begin(self, engine: Engine) -> Position:
        kind = self._wish.kind
        with reading(engine) as connection:
            spec = record.run_of(connection, self._run_id).spec
            job, job_text = record.job_of(connection, self._run_id)
        known = positions.load(self._cluster_dir, kind, self._run_id)
        if known is not None and known.over:
            return known
        resumes = None if spec.resumes is None else spec.resumes.run_id
        position = known or positions.first(self._cluster_dir, kind, self._run_id, resumes, spec.begins_at_step)
        curve = Curve(
            name=position.curve,
            run_id=self._run_id,
            job=job,
            job_text=job_text,
            first_step=position.next_step,
            is_new=known is None,
        )
        begun = replace(position, next_step=max(position.next_step, self._tracker.begin(curve)))
        positions.store(self._cluster_dir, kind, self._run_id, begun)
        return begun

    def _failed(self, error: Exception) -> None:
        """Told once, until it has worked again."""
        self._tracker.close()
        self._position = None
        said = error.message if isinstance(error, BambooError) else f"{type(error).__name__}: {error}"
        log.warning("tracker %s of run %s: %s", self._wish.kind, self._run_id, said)
        if not self._is_told:
            self._is_told = True
            text = f"{self._wish.kind} cannot be told ({said}); training goes on, and what it missed is told later"
            self._warn(self._run_id, text)

    def _is_patient(self) -> bool:
        return self._awaited is None or time.monotonic() - self._awaited[1] < HOLE_S

    def _note_hole(self, awaited: int | None) -> None:
        if awaited is None:
            self._awaited = None
        elif self._awaited is None or self._awaited[0] != awaited:
            self._awaited = (awaited, time.monotonic())
