"""The whole of Bamboo as its users have it: the command, the coordinator's daemon, the local cloud, real workers.

Each test has its own state folder, which every process of it carries in its environment (``BAMBOO_HOME``): that is how
they are found and ended at the end of the test, however that ended.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml
from bamboo_trainer.plan import Plan

from bamboo_cli.coordinator.reader import read_events, read_plans, read_status, read_steps
from bamboo_cli.coordinator.status import ClusterStatus, RunStatus, StepRow, StoryEvent
from bamboo_cli.errors import StateError
from bamboo_cli.providers.local_cloud import processes
from tests import paced
from tests.waiting import wait_until

NAME = "drilled"
DEADLINE_S = 200.0
END_S = 10.0
COMMAND = ("-m", "bamboo_cli.main")

T = TypeVar("T")

JOB: Mapping[str, Any] = {
    "name": NAME,
    "recipe": "mlp",
    "recipe_options": {"sleep_forward_s": 0.004, "sleep_backward_s": 0.004},
    "steps": 24,
    "global_batch_size": 16,
    "microbatch_size": 4,
    "stages": 3,
    "checkpoint": {"every": 4},
    "local": {"boot_delay_s": 0.0, "notice_s": 20.0},
}
"""Small enough for seconds; a step takes about a tenth of one, so that plans come into force between two losses."""
WITHOUT_REPLACEMENT = JOB["local"] | {"replace": False}
PLAIN: Mapping[str, Any] = {"recipe_options": {}, "steps": 200}
"""What ``Bamboo.paced`` computes, without its pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command said and how it ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        """The last line of standard output."""
        found: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return found


@dataclass(slots=True, kw_only=True)
class Bamboo:
    """The command line over one state folder."""

    folder: Path
    python: Path = Path(sys.executable)
    environment: dict[str, str] = field(default_factory=dict)
    cluster: str = NAME
    """Whose state is looked at."""
    _commands: list["Command"] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def job(self, **changes: Any) -> Path:
        """A job file: ``JOB`` with these keys instead."""
        path = self.folder / "job.yaml"
        path.write_text(yaml.safe_dump(dict(JOB) | changes), encoding="utf-8")
        return path

    def paced(self, **changes: Any) -> Path:
        """A job that takes its time until ``open_gate``. Its weights are those of ``PLAIN``."""
        recipe = {"recipe": str(Path(paced.__file__)), "recipe_options": {"gate": str(self._gate)}}
        return self.job(**{**PLAIN, **recipe, "checkpoint": {"every": 50}, **changes})

    def open_gate(self) -> None:
        self._gate.touch()

    @property
    def _gate(self) -> Path:
        return self.folder / "gate"

    def begin(self, *arguments: str | Path, program: Sequence[str | Path] = COMMAND) -> "Command":
        """Start a command and come back at once."""
        log = self.folder / f"command-{len(self._commands)}"
        with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("wb") as err:
            child = subprocess.Popen(
                [str(self.python), *map(str, (*program, *arguments))],
                cwd=self.folder,
                env=os.environ | {"BAMBOO_HOME": str(self.home)} | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                # tests that are run in the background of a shell ignore Ctrl-C, and so would their children
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self._commands.append(Command(child=child, log=log))
        return self._commands[-1]

    def call(self, *arguments: str | Path, deadline_s: float = DEADLINE_S) -> Outcome:
        return self.begin(*arguments).end(deadline_s)

    def run(self, **changes: Any) -> dict[str, Any]:
        """``bamboo run`` of a job that ends well; its summary."""
        return self.finish(self.begin("run", self.job(**changes), "--yes", "--json"))

    def finish(self, command: "Command") -> dict[str, Any]:
        """The summary of a run that ends well."""
        outcome = command.end()
        assert outcome.exit_code == 0, f"exit code {outcome.exit_code}\n{outcome.stderr}\n{self.story()}"
        return outcome.summary

    # --- what is seen from outside ---

    @property
    def cluster_dir(self) -> Path:
        return self.home / "clusters" / self.cluster

    def status(self) -> ClusterStatus:
        """Raises StateError."""
        return read_status(self.cluster_dir / "state.db", now=time.time())

    def active_run(self) -> RunStatus | None:
        try:
            return self.status().run
        except StateError:
            return None

    def committed_steps(self) -> int:
        run = self.active_run()
        return run.committed_steps if run is not None else 0

    def events(self, kind: str | None = None) -> list[StoryEvent]:
        return [event for event in read_events(self.cluster_dir / "state.db") if kind in (None, event.kind)]

    def steps(self, run_id: str) -> tuple[StepRow, ...]:
        return read_steps(self.cluster_dir / "state.db", run_id)

    def plans(self) -> tuple[Plan, ...]:
        return read_plans(self.cluster_dir / "state.db")

    def story(self) -> str:
        """For messages of failed assertions."""
        try:
            return "\n".join(f"{e.at:.2f} {e.kind} {e.node_id or ''} {e.text}" for e in self.events())
        except StateError as error:
            return error.message

    def until(self, condition: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
        """The first answer that is true. Fails with the story after ``deadline_s``."""
        return wait_until(condition, lambda: f"{what}\n{self.story()}", deadline_s=deadline_s)

    # --- processes ---

    def processes(self) -> Iterator[psutil.Process]:
        """Everything that was started over this state folder and lives."""
        return processes.marked("BAMBOO_HOME", str(self.home))

    def left(self) -> list[str]:
        """Empty: nothing is left running. The local cloud's daemon may take a moment to end."""
        with suppress(AssertionError):
            wait_until(lambda: not list(self.processes()), "the end of all", deadline_s=END_S)
        return [processes.title(process) for process in self.processes()]

    def end_everything(self) -> None:
        """Frozen ones too."""
        deadline = time.monotonic() + END_S
        while (found := list(self.processes())) and time.monotonic() < deadline:
            for process in found:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(found, timeout=0.2)
        for command in self._commands:
            command.child.wait(END_S)


@dataclass(slots=True, kw_only=True)
class Command:
    """A command that may still run."""

    child: "subprocess.Popen[bytes]"
    log: Path

    def is_on(self) -> bool:
        return self.child.poll() is None

    def end(self, deadline_s: float = DEADLINE_S) -> Outcome:
        """Waits for it, with a deadline."""
        try:
            self.child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.child.args!r} was still busy after {deadline_s:.0f} s\n{self._read()}"
            ) from None
        return self._read()

    def _read(self) -> Outcome:
        return Outcome(
            exit_code=self.child.returncode if self.child.returncode is not None else -1,
            stdout=self.log.with_suffix(".out").read_text(encoding="utf-8"),
            stderr=self.log.with_suffix(".err").read_text(encoding="utf-8"),
        )
