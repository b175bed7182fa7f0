"""A run from renting to giving back, however it ends."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo_cli import output, paths, training
from bamboo_cli.errors import DetachedError, SignalledError
from bamboo_cli.signals import Terminated, terminable
from bamboo_cli.teardown import Down, give_back, stop_in_order

if TYPE_CHECKING:
    from bamboo_cli.config import JobConfig
    from bamboo_cli.coordinator.settings import Resumes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    path: Path
    """The state file."""
    down: Down
    run_id: str | None
    """None: a signal came before the run had begun."""
    terminated: Terminated | None = None

    def check(self) -> None:
        """Raises SignalledError when a signal ended it."""
        if self.terminated is not None:
            what = f"run {self.run_id} has ended" if self.run_id else "the run had not begun"
            raise SignalledError(
                f"{self.terminated.name}: {what}, nothing is left running ({self.down.detail})",
                next_step=f"`bamboo events --cluster {self.path.parent.name}` tells the story.",
                exit_code=self.terminated.exit_code,
            )


def run_and_give_back(
    job: "JobConfig",
    job_text: str,
    cluster: str | None,
    resumes: "Resumes | None" = None,
    *,
    yes: bool,
    look_on: Callable[[Path, str], object] = training.look_on,
    detachable: bool = True,
) -> Ended:
    """Rent, train (from ``resumes`` on, else from step 0), give back. SIGTERM and SIGHUP stop the run in good order, as
    does Ctrl-C where the run is not ``detachable``; else it raises DetachedError, and all goes on.

    Raises whatever hindered renting or training, all given back.
    """
    from bamboo_cli.coordinator.store import state_path
    from bamboo_cli.renting import rent

    path = state_path(paths.cluster_dir(cluster or job.name))
    with terminable():
        try:
            rent(job, job_text, cluster, yes=yes, new=True)
            try:
                run_id = training.start_run(path, job, job_text, resumes)
                look_on(path, run_id)
            except (DetachedError, Terminated):
                raise
            except BaseException:
                _give_back(path)
                raise
            return Ended(path=path, run_id=run_id, down=_give_back(path))
        except Terminated as terminated:
            return _end(path, terminated)
        except DetachedError:
            if detachable:
                raise
            return _end(path, Terminated(signal.SIGINT))


def _give_back(path: Path) -> Down:
    """A first SIGTERM meanwhile changes nothing: what it wants is being done."""
    return give_back(path.parent, obeyed=(KeyboardInterrupt,))


def _end(path: Path, terminated: Terminated) -> Ended:
    from bamboo_cli.coordinator.reader import read_runs

    output.note(f"\n{terminated.name}: the run is being stopped and everything given back")
    down = give_back(path.parent, before=lambda: stop_in_order(path))
    runs = read_runs(path)
    return Ended(path=path, run_id=runs[-1].run_id if runs else None, down=down, terminated=terminated)
