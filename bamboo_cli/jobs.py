"""What a job means to the coordinator and to the cloud. Pure."""

from pathlib import Path

from bamboo_trainer import storage
from bamboo_trainer.control import Kill, TrainingSpec
from bamboo_trainer.plan import NodeId

from bamboo_cli.config import DrillConfig, JobConfig
from bamboo_cli.coordinator.settings import (
    BOOT_PATIENCE_S,
    MAX_BACK_OFF_S,
    PATIENCE_S,
    Budget,
    ClusterConfig,
    Drill,
    RunSpec,
    TrackerWish,
)
from bamboo_cli.costs.ledger import microusd
from bamboo_cli.providers.aws_cloud.known import AwsSettings
from bamboo_cli.providers.local import LocalConfig, LocalTrace, LocalZone
from bamboo_cli.remote.settings import ORPHAN_AFTER_S, RemoteConfig

AUTO = 0
"""``TrainingSpec.checkpoint_every`` that the coordinator resolves when the layers have been measured."""
REMOTE_BOOT_PATIENCE_S = 1800.0
"""A large image boots for minutes, and torch is installed over the network."""
UPLINK_PATIENCE_S = 600.0
"""Nodes train on without us; what they do meanwhile is not to be thrown away because a network here is down."""
AWS_NOTICE_S = 120.0


def zones_of(job: JobConfig) -> tuple[str, ...]:
    """Best first. Those of AWS are in the job once its cluster is made: ``market.settle``."""
    if job.cloud == "aws":
        return job.on_aws.zones
    return tuple(zone.name for zone in sorted(job.local.zones, key=lambda zone: zone.spot_usd_per_hour))


def cluster_config(job: JobConfig, cluster_id: str) -> ClusterConfig:
    speed = job.local.trace.speed if job.local.trace else 1.0
    return ClusterConfig(
        cluster_id=cluster_id,
        num_nodes=job.num_nodes,
        num_accelerators=job.local.accelerators,
        zones=zones_of(job),
        replace=job.local.replace,
        lease_s=job.lease_s,
        uplink_patience_s=0.0 if job.cloud == "local" else UPLINK_PATIENCE_S,
        way_patience_s=_way_patience_s(job),
        beat_s=min(1.0, job.lease_s / 5),  # several beats fit into a lease, so that one late beat is no loss
        patience_s=PATIENCE_S / max(1.0, speed),
        max_back_off_s=MAX_BACK_OFF_S / max(1.0, speed),
        idle_s=60.0 * job.on_aws.idle_after_min if job.cloud == "aws" else 0.0,
        boot_patience_s=BOOT_PATIENCE_S if job.cloud == "local" else REMOTE_BOOT_PATIENCE_S,
        on_demand_fallback=job.cloud == "aws" and job.on_aws.on_demand_fallback,
    )


def _way_patience_s(job: JobConfig) -> float:
    """By then agents that nobody reaches have saved their work and ended their machines."""
    orphan_after_s = 60.0 * job.on_aws.orphan_after_min if job.cloud == "aws" else 0.0
    return orphan_after_s or ORPHAN_AFTER_S


def notice_s(job: JobConfig) -> float:
    """Ahead of a preemption that is asked for."""
    return job.local.notice_s if job.cloud == "local" else AWS_NOTICE_S


def aws_settings(job: JobConfig) -> AwsSettings:
    aws = job.on_aws
    return AwsSettings(
        regions=aws.regions,
        zones=aws.zones,
        types=aws.types,
        max_price_usd_per_hour=aws.max_price_usd_per_hour,
        on_demand_fallback=aws.on_demand_fallback,
        image=aws.image,
        ssh_user=aws.ssh_user,
        ssh_from=None if aws.ssh_from == "auto" else aws.ssh_from,
        bastion=aws.bastion,
        subnets=aws.subnets,
        volume_gb=aws.volume_gb,
        profile=aws.profile,
        instance_profile=aws.instance_profile,
        fault_injection_role=aws.fault_injection_role,
    )


def local_config(job: JobConfig) -> LocalConfig:
    local = job.local
    return LocalConfig(
        zones=tuple(LocalZone(**zone.model_dump()) for zone in local.zones),
        instance_type=local.instance_type,
        num_accelerators=local.accelerators,
        boot_delay_s=local.boot_delay_s,
        preemptions_per_hour=local.preemptions_per_hour,
        preemption_seed=local.preemption_seed,
        notice_s=local.notice_s or None,
        notice_poll_s=min(1.0, local.notice_s / 10) if local.notice_s else 1.0,
        trace=None if local.trace is None else LocalTrace(num_nodes=job.num_nodes, **local.trace.model_dump()),
    )


def remote_config(job: JobConfig) -> RemoteConfig:
    """What is wished of machines that come without an agent."""
    if job.cloud != "aws":
        return RemoteConfig()
    aws = job.on_aws
    store = storage.package_of(job.checkpoint.url or "")
    return RemoteConfig(
        index_url=aws.torch_index_url or "",
        packages=() if store == "fsspec" else (store,),
        wheelhouse=Path(aws.wheelhouse) if aws.wheelhouse else None,
        connect_within_s=60.0 * aws.connect_within_min,
        orphan_after_s=60.0 * aws.orphan_after_min,
    )


def run_spec(
    job: JobConfig, run_id: str, default_checkpoint_url: str, recipe_sha256: str = "", recipe_source: str = ""
) -> RunSpec:
    """``default_checkpoint_url``: the folder for this run's checkpoints unless the job names one for all its runs."""
    url = f"{job.checkpoint.url.rstrip('/')}/{run_id}" if job.checkpoint.url else default_checkpoint_url
    return RunSpec(
        training=TrainingSpec(
            run_id=run_id,
            recipe=job.recipe,
            recipe_options=job.recipe_options,
            recipe_source=recipe_source,
            num_steps=job.steps,
            num_microbatches=job.num_microbatches,
            microbatch_size=job.microbatch_size,
            seed=job.seed,
            checkpoint_url=url,
            checkpoint_every=AUTO if job.checkpoint.every == "auto" else job.checkpoint.every,
            digest_every=job.digest_every,
            redundancy_memory=job.redundancy_memory,
            device=job.device,
            kills=tuple(_kill(entry) for entry in job.drill if entry.action is not None),
        ),
        num_pipelines=None if job.pipelines == "auto" else job.pipelines,
        num_stages=None if job.stages == "auto" else job.stages,
        min_nodes=job.min_nodes,
        mode=None if job.redundancy == "auto" else job.redundancy,
        level=None if job.redundancy_level == "auto" else job.redundancy_level,
        memory_bytes=memory_bytes(job),
        hazard=(job.local.preemptions_per_hour or None) if job.cloud == "local" else None,
        checkpoints_kept=job.checkpoint.keep,
        drills=tuple(_drill(entry) for entry in job.drill if entry.action is None),
        budget=budget(job),
        trackers=trackers(job),
        recipe_sha256=recipe_sha256,
    )


def budget(job: JobConfig) -> Budget:
    return Budget(
        max_microusd=None if job.max_cost_usd is None else microusd(job.max_cost_usd),
        max_s=None if job.max_hours is None else 3600.0 * job.max_hours,
        deadline=None if job.deadline is None else job.deadline.timestamp(),
    )


def trackers(job: JobConfig) -> tuple[TrackerWish, ...]:
    options = {
        "wandb": {"project": job.name, **job.wandb.model_dump(exclude_none=True)},
        "mlflow": {"experiment": job.name, **job.mlflow.model_dump(exclude_none=True)},
    }
    return tuple(TrackerWish(kind=kind, options=options.get(kind, {})) for kind in job.trackers)


def memory_bytes(job: JobConfig) -> int | None:
    return None if job.memory_gb is None else round(job.memory_gb * 1e9)


def _kill(entry: DrillConfig) -> Kill:
    assert entry.action is not None
    return Kill(
        step=entry.step,
        action=entry.action,
        how=entry.how,
        node_id=entry.node,
        pipeline_index=None if entry.stage is None else entry.pipeline,
        stage_index=entry.stage,
    )


def _drill(entry: DrillConfig) -> Drill:
    return Drill(
        step=entry.step,
        notice=entry.notice,
        node_id=None if entry.node is None else NodeId(entry.node),
        pipeline_index=entry.pipeline,
        stage_index=entry.stage,
    )
