"""What the coordinator knows of a run, one frozen value per stored row."""

from dataclasses import dataclass
from statistics import median

from bamboo_trainer.control import LayerCost, LayerSaved, Stopped, TrainingSpec
from bamboo_trainer.plan import Fetch, Plan, StepSummary, WorkerId

from bamboo_cli.coordinator.settings import RunSpec
from bamboo_cli.coordinator.states import PauseKind, RunReason, RunState
from bamboo_cli.coordinator.untold import Untold


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    worker_id: WorkerId
    stopped: Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Members were told to stop. ``generation``: of the plan (quiesce), or one of its own (halt)."""

    kind: PauseKind
    generation: int
    since: float
    reason: str
    stops: tuple[Stop, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLink:
    reporter: WorkerId
    peer: WorkerId
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distrusted:
    """A shadow's copy of a layer that differs from its owner's."""

    worker_id: WorkerId
    layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Layers that a worker is told to learn."""

    worker_id: WorkerId
    fetches: tuple[Fetch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Layers change hands before the plan that needs it. ``until``: when the change is made at the latest."""

    base_generation: int
    until: float
    lessons: tuple[Lesson, ...]
    learned: tuple[WorkerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What changes with decisions; what changes with every step is ``Progress``."""

    spec: RunSpec
    state: RunState = RunState.STARTING
    since: float
    reason: RunReason = RunReason.NONE
    detail: str = ""
    started_at: float
    ended_at: float | None = None
    stop_requested: bool = False
    over_budget: str = ""
    """Which of its limits has stopped it."""
    budget_told: bool = False
    """That a limit is near."""
    profiler: WorkerId | None = None
    costs: tuple[LayerCost, ...] = ()
    training: TrainingSpec | None = None
    """``spec.training`` with ``checkpoint_every`` resolved."""
    plan: Plan | None = None
    base_generation: int = 0
    """Of the boundary plan that ``plan`` is or descends from."""
    settled: bool = False
    """That boundary plan was adopted by all: every member holds its layers."""
    restoring: int | None = None
    """Steps that are run again since that plan goes back to a checkpoint (or the seed); until all have read it."""
    adopted: tuple[WorkerId, ...] = ()
    complete: tuple[WorkerId, ...] = ()
    """Who said ``RunComplete``."""
    pause: Pause | None = None
    """Kept while waiting: who holds what."""
    change_since: float | None = None
    """When the reconfiguration that is wanted was first wanted."""
    handover: Handover | None = None
    broken: tuple[BrokenLink, ...] = ()
    suspects: tuple[WorkerId, ...] = ()
    """Once for each broken link of which the other end was blamed."""
    distrusted: tuple[Distrusted, ...] = ()
    drills_done: tuple[int, ...] = ()
    drills_struck: tuple[int, ...] = ()
    """Of those done, the ones that found somebody."""
    num_crashes: int = 0
    """Workers of the run that ended by themselves since a step beyond ``crashed_after`` was committed."""
    crashed_after: int = -1
    model_writer: WorkerId | None = None
    model_url: str = ""
    num_parameters: int = 0
    weights_sha256: str = ""

    @property
    def run_id(self) -> str:
        return self.spec.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    run_id: str
    committed_step: int = -1
    """The newest committed step; goes back at a restore."""
    untold: Untold = ()
    """Steps that are committed though nobody has told of them."""
    loss: float | None = None
    first_loss: float | None = None
    summary: StepSummary | None = None
    """Of ``committed_step``, where known."""
    num_samples: int = 0
    """That count: a step that is run again counts once."""
    num_tokens: int = 0
    tokens_per_step: int = 0
    preemptions: int = 0
    failovers: int = 0
    reconfigurations: int = 0
    restores: int = 0
    steps_rerun: int = 0
    pause_s: float = 0.0
    spent_microusd: int = 0
    """So far, as last heard; only where the run has a limit of it."""
    last_commit_at: float | None = None
    disturbed: bool = False
    """By a loss or a reconfiguration since the last commit."""
    step_seconds: tuple[float, ...] = ()
    """Of the latest undisturbed steps."""
    link_bytes_per_s: float | None = None
    """What the last learner saw."""
    num_stale: int = 0
    """Messages of older generations that were refused."""

    @property
    def usual_step_s(self) -> float:
        """The median; 0: none is known."""
        return median(self.step_seconds) if self.step_seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checkpoint out of turn, of the members of one plan."""

    step: int
    generation: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    run_id: str
    listed: bool = False
    trouble: str = ""
    """Why they could not be listed."""
    complete: tuple[int, ...] = ()
    """Steps, oldest first."""
    unreadable: tuple[int, ...] = ()
    saved: tuple[LayerSaved, ...] = ()
    """Of checkpoints that lack layers or their marker."""
    last_failed: int | None = None
    """The step of the newest one that could not be written."""
    last_tries: int = 0
    """To write the one of the last step, that failed."""
    retry_at: float | None = None
    """When the members save the last step again. Until then, further failures are of the same try."""
    marking: tuple[int, ...] = ()
    """Steps whose marker is being written."""
    asked: Asked | None = None
    """The newest one that was asked for out of turn."""
