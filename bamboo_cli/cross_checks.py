"""What single fields of a job cannot know: whether they fit each other."""

import math
from collections import Counter

from bamboo_trainer.plan import Mode

from bamboo_cli.config import JobConfig
from bamboo_cli.drill_checks import Mistake, check_drill


def cross_checks(job: JobConfig) -> list[Mistake]:
    """What single fields cannot know: (key, what is wrong and what to do), in the order of the file."""
    return [
        *_check_cloud(job),
        *_check_sizes(job),
        *_check_deadline(job),
        *_check_redundancy(job),
        *_check_zones(job),
        *_check_aws(job),
        *_check_trackers(job),
        *check_drill(job),
    ]


def _check_cloud(job: JobConfig) -> list[Mistake]:
    """What belongs to one cloud says nothing about the other, so it is not read over in silence."""
    found: list[Mistake] = []
    if job.cloud != "local" and "local" in job.model_fields_set:
        found.append((("local",), f"is about the local cloud, but the job's is {job.cloud}; leave it out"))
    if job.cloud != "aws" and job.aws is not None:
        found.append((("aws",), f"is about AWS, but the job's cloud is {job.cloud}; say `cloud: aws`, or leave it out"))
    if job.cloud == "aws" and job.aws is None:
        found.append((("cloud",), "`aws` needs a section `aws` with at least `types`: [g5.xlarge], say"))
    return found


def _check_deadline(job: JobConfig) -> list[Mistake]:
    try:
        if job.deadline is not None:
            job.deadline.timestamp()
    except (ValueError, OverflowError):  # in the first or the last year there is, and another one in this time zone
        return [(("deadline",), f"{job.deadline} is no moment that this machine's clock can tell; take a nearer one")]
    return []


def _check_sizes(job: JobConfig) -> list[Mistake]:
    found: list[Mistake] = []
    if job.global_batch_size % job.microbatch_size:
        below = job.global_batch_size // job.microbatch_size * job.microbatch_size
        nearest = f"{below} or {below + job.microbatch_size}" if below else f"{job.microbatch_size}"
        found.append(
            (
                ("global_batch_size",),
                f"{job.global_batch_size} samples cannot be cut into microbatches of {job.microbatch_size}; "
                f"take {nearest}, or another microbatch_size",
            )
        )
    elif job.pipelines != "auto" and job.num_microbatches < job.pipelines:
        found.append(
            (
                ("pipelines",),
                f"{job.num_microbatches} microbatches a step cannot feed {job.pipelines} pipelines; "
                f"take at most {job.num_microbatches} pipelines, or a smaller microbatch_size",
            )
        )
    if job.nodes is None and job.num_hosts is None:
        key = "pipelines" if job.pipelines == "auto" else "stages"
        found.append((("nodes",), f"is needed with `{key}: auto`: how many nodes to keep rented"))
    elif job.num_hosts is not None and job.num_workers < job.num_hosts:
        each = job.local.accelerators
        nodes = f"{job.num_nodes} nodes{f' with {each} accelerators' if each > 1 else ''}"
        found.append(
            (
                ("nodes",),
                f"{nodes} cannot host {job.pipelines} pipelines of {job.stages} stages; "
                f"take {math.ceil(job.num_hosts / each)} or more, or leave the key out",
            )
        )
    if job.min_nodes > job.num_nodes and (job.nodes is not None or job.num_hosts is not None):
        found.append((("min_nodes",), f"{job.min_nodes} is more than the {job.num_nodes} nodes of the job"))
    return found


def _check_redundancy(job: JobConfig) -> list[Mistake]:
    if job.redundancy is Mode.REROUTE and job.pipelines == 1:
        return [(("redundancy",), "`reroute` takes over from another pipeline: take 2 or more pipelines")]
    if job.redundancy_level == "auto":
        return []
    if job.redundancy_level > 1 and job.redundancy != "auto" and not job.redundancy.has_shadows:
        return [(("redundancy_level",), f"there are no shadows with `redundancy: {job.redundancy}`")]
    if job.redundancy_level > 1 and job.stages != "auto" and job.stages <= job.redundancy_level:
        return [
            (
                ("redundancy_level",),
                f"a stage can have {job.stages - 1} shadows in a pipeline of {job.stages} stages; "
                f"take {job.redundancy_level + 1} or more stages, or a lower level",
            )
        ]
    return []


def _check_aws(job: JobConfig) -> list[Mistake]:
    aws = job.aws
    if aws is None:
        return []
    found: list[Mistake] = []
    for name in ("regions", "zones", "types", "subnets"):
        twice = [value for value, count in Counter(getattr(aws, name)).items() if count > 1]
        if twice:
            found.append((("aws", name), f"{twice[0]} is there twice"))
    strange = [zone for zone in aws.zones if zone[:-1] not in aws.regions]
    if strange:
        found.append((("aws", "zones"), f"{strange[0]} is in none of the regions {', '.join(aws.regions)}"))
    if aws.image.startswith("ami-") and len(aws.regions) > 1:
        text = f"{aws.image} is in one region only; take `auto`, a name with *, or a single region"
        found.append((("aws", "image"), text))
    if job.checkpoint.url is None:
        text = "is needed on AWS, whose nodes share no folder: a store that all of them reach, such as s3://bucket/runs"
        found.append((("checkpoint", "url"), text))
    if aws.bastion is not None and aws.ssh_from == "auto":
        found.append((("aws", "ssh_from"), "is needed with a bastion: the block of addresses that it connects from"))
    return found


def _check_trackers(job: JobConfig) -> list[Mistake]:
    twice = [name for name, count in Counter(job.trackers).items() if count > 1]
    found: list[Mistake] = [(("trackers",), f"{name} is there twice") for name in twice[:1]]
    for name in ("wandb", "mlflow"):
        if name in job.model_fields_set and name not in job.trackers:
            found.append(((name,), f"is about {name}, which is not among the `trackers`; add it, or leave this out"))
    return found


def _check_zones(job: JobConfig) -> list[Mistake]:
    if job.cloud != "local":
        return []
    twice = [name for name, count in Counter(zone.name for zone in job.local.zones).items() if count > 1]
    if twice:
        return [(("local", "zones"), f"zone {twice[0]} is there twice; give every zone a name of its own")]
    capacity = sum(zone.capacity for zone in job.local.zones)
    if capacity < job.num_nodes:
        return [(("local", "zones"), f"room for {capacity} instances, but the job wants {job.num_nodes} nodes")]
    return []
