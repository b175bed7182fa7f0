"""What the machine is told: the cluster it keeps, the run it is asked for. The job file is read elsewhere."""

from dataclasses import dataclass, field
from typing import Any

from bamboo_trainer.control import LayerCost, TrainingSpec
from bamboo_trainer.plan import Mode, NodeId
from bamboo_trainer.wanted import Wanted, Weather

PATIENCE_S = 60.0
MAX_BACK_OFF_S = 60.0
BOOT_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Fixed for the life of a cluster. Durations in seconds."""

    cluster_id: str
    num_nodes: int
    """How many the fleet keeps."""
    num_accelerators: int = 1
    """Of a node, as long as none has joined to say it."""
    zones: tuple[str, ...]
    """Where nodes may be rented, best first."""
    replace: bool = True
    """Whether nodes that are lost or taken are replaced."""
    on_demand_fallback: bool = False
    """Whether to rent on demand while no zone has a spot instance."""
    lease_s: float = 10.0
    """Silence after which a worker or a node is declared lost."""
    uplink_patience_s: float = 0.0
    """While no node at all is heard, the coordinator's own network is to blame, for so long."""
    way_patience_s: float = 3600.0
    """While the bastion cannot be reached, no node is blamed for its silence, for so long."""
    beat_s: float = 1.0
    patience_s: float = PATIENCE_S
    """How long a run waits for all of its nodes before it starts with at least ``min_nodes``."""
    max_back_off_s: float = MAX_BACK_OFF_S
    """Between two tries to rent a node when no zone has one."""
    settle_s: float = 0.0
    """Between a loss and the reconfiguration after it, so that a burst of losses makes one."""
    gather_s: float = 1.0
    """Between the arrival of a standby that helps and the reconfiguration with it: nodes often come together."""
    boot_patience_s: float = BOOT_PATIENCE_S
    """An instance whose agent has not joined by then is given back."""
    idle_s: float = 0.0
    """Without a run, after which all nodes are given back; 0: never."""
    lost_patience_s: float = 600.0
    """A lost node that has not come back by then is given back: it costs money."""
    warm_patience_s: float = 180.0
    """A worker that is not ready by then is started anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """The coordinator asks the cloud to take a node when ``step`` is committed. Exactly one of ``node_id`` and
    ``stage_index`` names the victim (the host of that stage)."""

    step: int
    notice: bool
    node_id: NodeId | None = None
    pipeline_index: int = 0
    stage_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumes:
    """The checkpoint of an earlier run that a run goes on from."""

    run_id: str
    step: int
    url: str
    """The folder of that run's checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Of one run; None: no limit. At any of them it saves a checkpoint and stops."""

    max_microusd: int | None = None
    max_s: float | None = None
    """From its start."""
    deadline: float | None = None
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerWish:
    """Where a run's curves are to be seen."""

    kind: str
    """``tensorboard``, ``wandb`` or ``mlflow``."""
    options: dict[str, Any] = field(default_factory=dict)
    """As the job has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What is asked of the coordinator; ``training`` is what every worker of it is told."""

    training: TrainingSpec
    """``checkpoint_every`` 0 means auto: resolved once, when the layers have been measured."""
    num_pipelines: int | None
    num_stages: int | None
    min_nodes: int = 1
    """With fewer the run waits."""
    mode: Mode | None = Mode.BUBBLE
    level: int | None = 1
    """Shadows a stage. Of these four, None is for the planner to choose."""
    memory_bytes: int | None = None
    """That a worker has for the model; None: no limit is known."""
    hazard: float | None = None
    """Losses per node and hour that are to be expected; None: what is usual."""
    checkpoints_kept: int = 2
    model_url: str = ""
    """Where the merged model is written at the end; empty: ``<checkpoint_url>/model.safetensors``."""
    drills: tuple[Drill, ...] = ()
    budget: Budget = Budget()
    trackers: tuple[TrackerWish, ...] = ()
    recipe_sha256: str = ""
    """Of the recipe's file when the run was asked for; empty: not known."""
    resumes: Resumes | None = None
    """None: the run begins at step 0."""

    @property
    def run_id(self) -> str:
        return self.training.run_id

    @property
    def begins_at_step(self) -> int:
        """Steps before it are those of the run that this one goes on from."""
        return 0 if self.resumes is None else self.resumes.step + 1

    def wanted(self, costs: tuple[LayerCost, ...], weather: Weather) -> Wanted:
        """What the planner is asked for."""
        return Wanted(
            num_pipelines=self.num_pipelines,
            num_stages=self.num_stages,
            mode=self.mode,
            level=self.level,
            num_microbatches=self.training.num_microbatches,
            costs=costs,
            weather=weather,
            redundancy_memory=self.training.redundancy_memory,
        )

    def num_hosts(self, num_workers: int) -> int:
        """Workers that the shape asks for; all, where it is the planner's."""
        if self.num_pipelines is None or self.num_stages is None:
            return num_workers
        return self.num_pipelines * self.num_stages
