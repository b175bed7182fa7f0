"""Nights of real entries: ``bamboo cron`` over ``tests.cluster.Bamboo``, with somebody who is notified."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from bamboo_trainer import births

from bamboo_cli.cron import entries, launcher
from bamboo_cli.cron.entries import Entry, Starter
from tests.cluster import NAME, Bamboo, Command

NOTIFY = 'cat > "$BAMBOO_CRON_LOG.notified-$BAMBOO_CRON_EXIT_CODE"'


@dataclass(frozen=True)
class Nightly:
    bamboo: Bamboo
    entry: Entry

    def begin(self, *arguments: str) -> Command:
        return self.bamboo.begin("cron", "run-now", NAME, "--json", *arguments)

    def shown(self) -> dict[str, Any]:
        (found,) = json.loads(self.bamboo.call("cron", "list", "--json").stdout)
        return dict(found)

    def notified(self, exit_code: int) -> str:
        """What was told of it; empty: nothing was."""
        path = self.entry.log.with_name(f"log.notified-{exit_code}")
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def log(self) -> str:
        return self.entry.log.read_text(encoding="utf-8")

    def until_some_steps(self, *, after: str | None = None) -> str:
        """Of another run than ``after``; its id."""

        def trains() -> str | None:
            run = self.bamboo.active_run()
            if run is None or run.run_id == after or run.ended_at is not None:
                return None
            return run.run_id if len(self.bamboo.steps(run.run_id)) > 3 else None

        return self.bamboo.until(trains, "some steps")

    def night(self) -> psutil.Process:
        """The process that supervises."""
        return self._process("night")

    def run(self) -> psutil.Process:
        """`bamboo run`, which the night has started."""
        return self._process("run")

    def _process(self, verb: str) -> psutil.Process:
        def words(process: psutil.Process) -> list[str]:
            try:
                return process.cmdline()
            except psutil.NoSuchProcess:
                return []

        (found,) = [p for p in self.bamboo.processes() if "bamboo_cli.main" in (w := words(p)) and verb in w[2:5]]
        return found


def nightly(bamboo: Bamboo, monkeypatch: Any, job: Path, **changes: Any) -> Nightly:
    """The entry as `add` leaves it, and no crontab."""
    monkeypatch.setenv("BAMBOO_HOME", str(bamboo.home))
    shared = tuple((name, value) for name, value in bamboo.environment.items() if name == births.SHARED_VARIABLE)
    basis = {
        "entry_id": NAME,
        "schedule": "0 2 * * *",
        "starter": Starter.CRON,
        "job": str(job),
        "cluster": NAME,
        "environment": shared,
        "notify": (NOTIFY,),
    }
    entry = Entry(**basis | changes)
    entries.write(entry)
    launcher.write(entry)
    return Nightly(bamboo, entry)


def kill(*processes: psutil.Process) -> None:
    for process in processes:
        process.send_signal(signal.SIGKILL)
