"""The job file: everything that one may ask for, a sentence per field. Reading it is ``bamboo_cli.job_file``.

``docs/job-file.md`` is generated from these sentences.
"""

import math
import re
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from bamboo_trainer.control import DeviceWish
from bamboo_trainer.plan import Mode, RedundancyMemory
from pydantic import Field, model_validator

from bamboo_cli.config_aws import AWS_PATTERN_WORDS, AwsConfig
from bamboo_cli.config_section import Section
from bamboo_cli.config_trackers import MlflowConfig, Trackers, WandbConfig
from bamboo_cli.paths import NAME_PATTERN

MAX_NUMBER = 10**9
"""Of anything that is counted: far beyond use, and well within what the state file can hold."""
MAX_SEED = 2**63 - 1
NODE_PATTERN = r"^n[1-9][0-9]*$"
ZONE_PATTERN = r"^[a-z0-9][a-z0-9-]*$"
PATTERN_WORDS = AWS_PATTERN_WORDS | {
    NODE_PATTERN: "the letter n and a number, such as n3",
    ZONE_PATTERN: "small letters, digits and dashes, with no dash first",
}
ACTION_PATTERN = re.compile(r"^(?P<stage>\d+)(?P<kind>F|B|FRC)(?P<microbatch>\d+)$")
PLACES = ("REDUCE", "COMMIT", "OPTIMIZER", "CHECKPOINT", "TAKEOVER")


class CheckpointConfig(Section):
    """Where the run is saved, and how often."""

    url: str | None = Field(
        None,
        description="Folder for checkpoints: any fsspec URL, or a path relative to the job file; by default inside "
        "Bamboo's own state folder.",
    )
    every: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="Steps between checkpoints; `auto`: chosen when the layers have been measured. "
        "The last step is always saved.",
    )
    keep: int = Field(2, ge=1, description="Complete checkpoints to keep; older ones are deleted.")


class ZoneConfig(Section):
    """One zone of the local cloud."""

    name: str = Field(pattern=ZONE_PATTERN, description="Name of the zone.")
    spot_usd_per_hour: float = Field(
        0.30, ge=0, le=MAX_NUMBER, description="What a spot instance costs there, in USD per hour."
    )
    on_demand_usd_per_hour: float = Field(
        1.00, ge=0, le=MAX_NUMBER, description="What the same instance would cost on demand, in USD per hour."
    )
    capacity: int = Field(8, ge=0, description="Instances that the zone has at most at a time.")


def _default_zones() -> tuple[ZoneConfig, ...]:
    return (
        ZoneConfig(name="local-a", spot_usd_per_hour=0.30),
        ZoneConfig(name="local-b", spot_usd_per_hour=0.32),
        ZoneConfig(name="local-c", spot_usd_per_hour=0.35),
    )


class TraceConfig(Section):
    """A record of spot instances that came and went, replayed by the local cloud."""

    path: str = Field(
        min_length=1,
        description="CSV file with lines of milliseconds, `add` or `remove`, and the instance's name; relative to the "
        "job file. The most instances that it ever had stand for `nodes`.",
    )
    speed: float = Field(
        1.0,
        gt=0,
        le=MAX_NUMBER,
        description="Seconds of the trace that pass in one; the fleet is as much less patient.",
    )
    start_s: float = Field(0.0, ge=0, description="Where in the trace to begin, in its own seconds.")


class LocalCloudConfig(Section):
    """The cloud of processes on this machine."""

    zones: tuple[ZoneConfig, ...] = Field(
        default_factory=_default_zones, min_length=1, description="The zones and their made-up prices and capacities."
    )
    instance_type: str = Field("local.small", min_length=1, description="Name of the instance type, for the reports.")
    accelerators: int = Field(
        1,
        ge=1,
        le=MAX_NUMBER,
        description="Accelerators of an instance, each with a worker. A node is lost with all of them.",
    )
    boot_delay_s: float = Field(0.5, ge=0, description="Seconds from renting an instance to its first breath.")
    preemptions_per_hour: float = Field(
        0.0, ge=0, description="Chance of a preemption per node and hour, as an hourly rate; 0: none of its own accord."
    )
    preemption_seed: int = Field(0, description="Seed of those preemptions, and of which nodes a trace takes.")
    trace: TraceConfig | None = Field(None, description="Take and give nodes as a recorded trace says.")
    notice_s: float = Field(
        10.0, ge=0, description="Seconds of warning before a preemption (AWS: up to 120, GCP: 30); 0: none."
    )
    replace: bool = Field(
        True,
        strict=True,
        description="Whether a node that was taken is replaced by a new one. If not, a run ends as failed "
        "once too few nodes are left.",
    )


class DrillConfig(Section):
    """One loss on purpose.

    Without `action` it is a preemption that the cloud is asked for once the step is committed. With `action` the
    victim is struck inside the step, at exactly this place, without any warning.
    """

    step: int = Field(ge=0, description="The step, counted from 0.")
    node: str | None = Field(None, pattern=NODE_PATTERN, description="The victim by name, such as `n3`.")
    stage: int | None = Field(None, ge=0, description="The victim by what it runs: the host of this stage.")
    pipeline: int = Field(0, ge=0, description="The pipeline of that stage.")
    action: str | None = Field(
        None,
        description="Where in the step: `1F0`, `1B2`, `1FRC0` (stage, kind, microbatch), or `REDUCE`, `COMMIT`, "
        "`OPTIMIZER`, `CHECKPOINT`, `TAKEOVER`. Microbatches are counted over all pipelines: of 8 in 2 pipelines, the "
        "second has 4 to 7.",
    )
    how: Literal["kill", "freeze", "freeze_node", "cut"] = Field(
        "kill",
        description="With `action`: the machine vanishes (`kill`), the worker or the whole node hangs (`freeze`, "
        "`freeze_node`), or its links to its peers stay down (`cut`).",
    )
    notice: bool = Field(
        True, strict=True, description="Without `action`: whether the cloud gives notice (`local.notice_s`)."
    )

    @model_validator(mode="after")
    def _one_victim_one_kind(self) -> Self:
        if (self.node is None) == (self.stage is None):
            raise ValueError("name the victim by either `node` or `stage`")
        if self.stage is None and "pipeline" in self.model_fields_set:
            raise ValueError("`pipeline` goes with `stage`, not with `node`")
        if self.action is None and self.how != "kill":
            raise ValueError(f"`how: {self.how}` needs an `action` to strike at")
        if self.action is not None and self.notice and "notice" in self.model_fields_set:
            raise ValueError("a loss at an `action` comes without notice; leave `notice` out")
        if self.action is not None and self.action not in PLACES and not ACTION_PATTERN.match(self.action):
            raise ValueError(
                f"`{self.action}` is not an action; write `1F0`, `1B2`, `1FRC0` or one of {', '.join(PLACES)}"
            )
        return self


class JobConfig(Section):
    """A job: what to train, on what, and what may happen to it."""

    name: str = Field(
        pattern=NAME_PATTERN, description="Name of the job and of its cluster: small letters, digits and dashes."
    )
    cloud: Literal["local", "aws"] = Field(
        "local", description="Where to rent: `local` is a cloud of processes on this machine, `aws` is EC2."
    )
    recipe: str = Field(
        "gpt2",
        min_length=1,
        description="What to train: `gpt2`, `mlp`, or a Python file (`recipe.py` or `recipe.py:function`), "
        "relative to the job file.",
    )
    recipe_options: dict[str, Any] = Field(default_factory=dict, description="Passed to the recipe as they are.")
    steps: int = Field(ge=1, le=MAX_NUMBER, description="Optimizer updates to make.")
    global_batch_size: int = Field(
        ge=1, le=MAX_NUMBER, description="Samples per step, over all pipelines. Never shrinks."
    )
    microbatch_size: int = Field(
        ge=1, description="Samples that pass through a stage at once; divides the global batch."
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="Of initial weights, data order and dropout.")
    pipelines: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        1,
        description="Pipelines side by side (data parallelism); `auto`: as many as commit the most, which may change "
        "the last bits of the weights whenever nodes come and go.",
    )
    stages: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        2,
        description="Stages that the layers are cut into (pipeline parallelism); `auto`: as many as commit the most, "
        "in pipelines that may differ by one.",
    )
    nodes: int | None = Field(
        None,
        ge=1,
        description="Nodes to keep rented; by default enough for pipelines × stages with `local.accelerators` each. "
        "Needed where one of them is `auto`. What is left over stands by.",
    )
    min_nodes: int = Field(1, ge=1, description="With fewer nodes than this the run waits for more.")
    redundancy: Mode | Literal["auto"] = Field(
        Mode.BUBBLE,
        description="How each stage is protected. With a shadow that computes its forwards `lazy` (only after a loss), "
        "in each `bubble` (while it would wait anyway) or `eager` (every step), or backwards as well (`full`), or "
        "nothing (`mirror`: after a loss the step runs again). Without: `reroute` (another pipeline takes the stage "
        "over) or `off`. `auto`: what costs least by what was measured, stage by stage, of what survives any one loss.",
    )
    redundancy_level: Annotated[int, Field(ge=1, le=2)] | Literal["auto"] = Field(
        1,
        description="Shadows of each stage: so many neighbours may be lost at once. Costs their memory. `auto`: 1 or "
        "2.",
    )
    redundancy_memory: RedundancyMemory = Field(
        RedundancyMemory.DEVICE,
        description="Where a worker keeps what it has for the loss of others: beside the stage that it runs "
        "(`device`), or in host memory (`host`), which leaves the accelerator's to that stage and costs copies in "
        "every step. Without an accelerator it is all one.",
    )
    memory_gb: float | None = Field(
        None,
        gt=0,
        le=MAX_NUMBER,
        description="Memory that a worker has for the model, in GB, which `auto` keeps within; of the accelerator, "
        "where there is one. By default what is free there, less a tenth; no limit is known of a CPU.",
    )
    device: DeviceWish = Field(
        DeviceWish.AUTO,
        description="What a worker computes on: a GPU where torch finds one on the node, else the CPU (`auto`); `cpu`; "
        "or `cuda`, which ends the run where there is none.",
    )
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="Where and how often to save.")
    lease_s: float = Field(
        10.0, gt=0, description="Seconds of silence after which a frozen or cut-off node counts as lost."
    )
    digest_every: int = Field(
        100, ge=0, description="Steps between comparisons of shadows with the stages they shadow; 0: never."
    )
    max_cost_usd: float | None = Field(
        None,
        gt=0,
        le=MAX_NUMBER,
        description="What a run may cost, in dollars. At four fifths of it Bamboo warns; at all of it the run saves a "
        "checkpoint and stops, and `bamboo run` and `train` end with exit code 4. So for the next two.",
    )
    max_hours: float | None = Field(None, gt=0, le=MAX_NUMBER, description="How long a run may take, in hours.")
    deadline: datetime | None = Field(
        None,
        description="When a run has to be over, such as 2026-12-01T08:00; in this machine's time zone, unless it names "
        "one.",
    )
    trackers: Trackers = ("tensorboard",)
    wandb: WandbConfig = Field(default_factory=WandbConfig, description="Weights & Biases, if it is among them.")
    mlflow: MlflowConfig = Field(default_factory=MlflowConfig, description="MLflow, if it is among them.")
    local: LocalCloudConfig = Field(default_factory=LocalCloudConfig, description="The local cloud.")
    aws: AwsConfig | None = Field(None, description="What to rent on EC2; needed with `cloud: aws`.")
    drill: tuple[DrillConfig, ...] = Field((), description="Losses on purpose, to see what happens.")

    @property
    def on_aws(self) -> AwsConfig:
        """Of a job whose cloud it is."""
        assert self.aws is not None
        return self.aws

    @property
    def num_microbatches(self) -> int:
        return self.global_batch_size // self.microbatch_size

    @property
    def num_nodes(self) -> int:
        if self.nodes is not None:
            return self.nodes
        return 1 if self.num_hosts is None else math.ceil(self.num_hosts / self.local.accelerators)

    @property
    def num_workers(self) -> int:
        return self.num_nodes * self.local.accelerators

    @property
    def num_hosts(self) -> int | None:
        """Workers that the shape needs; None: as many as there are."""
        return None if self.pipelines == "auto" or self.stages == "auto" else self.pipelines * self.stages

    @property
    def fixed_shape(self) -> tuple[int, int]:
        """Pipelines and stages, of a job that leaves neither to the planner."""
        assert self.pipelines != "auto" and self.stages != "auto"
        return self.pipelines, self.stages

    @property
    def fixed_mode(self) -> Mode:
        assert self.redundancy != "auto"
        return self.redundancy

    @property
    def is_auto(self) -> bool:
        """Something is left to the planner."""
        return "auto" in (self.pipelines, self.stages, self.redundancy, self.redundancy_level)
