"""Whether the account may have as many vCPUs as a job takes, asked before some of its nodes cost money in vain."""

from dataclasses import dataclass

from bamboo_cli import jobs, output, paths
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import CloudError
from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud.known import Known
from bamboo_cli.providers.aws_cloud.quotas import Quota, how_to_raise, quota_of, worth_asking_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    region: str
    num_nodes: int
    """That the quotas hold, were nothing else there."""
    quota: Quota
    num_vcpus: int
    """Both of the first type that the region has."""


def quota_warnings(job: JobConfig) -> list[str]:
    """Empty unless it is certain that no region has room for all nodes. What else the account runs is not known."""
    if job.cloud != "aws" or job.on_aws.on_demand_fallback:
        return []
    known = AwsProvider(paths.cluster_dir(job.name), jobs.aws_settings(job)).known
    rooms = [room_in(known, region, job.on_aws.types) for region in job.on_aws.regions]
    certain = [room for room in rooms if room is not None]
    best = max(certain, key=lambda room: room.num_nodes, default=None)
    if best is None or len(certain) < len(rooms) or best.num_nodes >= job.num_nodes:
        return []
    wanted = worth_asking_for(job.num_nodes, best.num_vcpus)
    return [
        f"{best.region} has a quota for {best.num_nodes} of {output.plural(job.num_nodes, 'node')} "
        f"({best.quota.name}): they would cost money while the others are waited for. "
        f"{how_to_raise(best.quota, best.region, wanted)}"
    ]


def room_in(known: Known, region: str, types: tuple[str, ...]) -> Room | None:
    """None: not known."""
    held: dict[Quota, int] = {}
    first: tuple[Quota, int] | None = None
    for instance_type in types:
        quota = quota_of(instance_type, spot=True)
        there = None if quota is None else known.quota(region, quota.code)
        if quota is None or there is None:
            return None
        try:
            num_vcpus = known.facts(region, instance_type).num_vcpus
        except CloudError:
            continue  # the region does not have it
        first = first or (quota, num_vcpus)
        held[quota] = max(held.get(quota, 0), int(there // num_vcpus))
    if first is None:
        return None
    return Room(region=region, num_nodes=sum(held.values()), quota=first[0], num_vcpus=first[1])
