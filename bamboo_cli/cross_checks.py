"""What single fields of a job cannot know: whether they fit each other."""

import math
from collections import Counter

from bamboo_trainer.plan import Mode

from bamboo_cli.config import JobConfig
from bamboo_cli.drill_checks import Mistake, check_drill


def cross_checks(job: JobConfig) -> list[Mistake]:
    """What single fields cannot know: (key, what is wrong and what to do), in the order of the file."""
    return [*_check_sizes(job), *_check_redundancy(job), *_check_zones(job), *check_drill(job)]


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


def _check_zones(job: JobConfig) -> list[Mistake]:
    twice = [name for name, count in Counter(zone.name for zone in job.local.zones).items() if count > 1]
    if twice:
        return [(("local", "zones"), f"zone {twice[0]} is there twice; give every zone a name of its own")]
    capacity = sum(zone.capacity for zone in job.local.zones)
    if capacity < job.num_nodes:
        return [(("local", "zones"), f"room for {capacity} instances, but the job wants {job.num_nodes} nodes")]
    return []
