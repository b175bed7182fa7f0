"""``bamboo up --dry-run``: the requests that would be sent to EC2, and whether it would do them. Nothing is made."""

from dataclasses import dataclass, replace
from typing import Any

from bamboo_cli import jobs, output, paths
from bamboo_cli.aws_check import TRIAL_KEY, dry_run, trial_request
from bamboo_cli.aws_quota import quota_warnings
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import CloudError, UsageError
from bamboo_cli.market import MarketZone, market_on
from bamboo_cli.preview import preview, storage_warnings
from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud import operations, requests
from bamboo_cli.providers.aws_cloud.operations import Operation

SECRET = "(cloud-init: the host key that is made for this instance)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    action: str
    region: str
    times: str
    """How often it would be sent."""
    request: dict[str, Any]
    accepted: bool
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    num_nodes: int
    spot_usd_per_hour: float
    zones: tuple[MarketZone, ...]
    requests: tuple[Asked, ...]
    warnings: tuple[str, ...]
    """What EC2 does not look at in a dry run."""

    @property
    def in_short(self) -> str:
        """Whoever sees the end of so many lines wants to know."""
        price = f"{output.plural(self.num_nodes, 'node')} for about {output.usd(self.spot_usd_per_hour)} an hour"
        warned = "".join(f"\n{warning}" for warning in self.warnings)
        return f"EC2 takes the requests: {price}, first in {self.zones[0].name}. Nothing was rented.{warned}"

    def check(self) -> None:
        """Raises CloudError unless EC2 would do everything."""
        refused = [asked.answer for asked in self.requests if not asked.accepted]
        if refused:
            raise CloudError(
                f"the nodes cannot be rented: EC2 {refused[0]}", next_step="`bamboo check aws` tells more."
            )


def rehearse(job: JobConfig, cluster: str | None) -> Rehearsal:
    """For the best zone of now. Raises UsageError for a job that is not for AWS; CloudError."""
    if job.cloud != "aws":
        raise UsageError(
            "--dry-run is about the requests to AWS, and the job's cloud is local",
            next_step="`bamboo plan` shows what the job would look like.",
        )
    name = cluster or job.name
    provider = AwsProvider(paths.cluster_dir(name), jobs.aws_settings(job))
    market = market_on(provider, job)
    cluster_id = f"{name}-000000"
    best = market[0]
    offer = next(o for o in provider.offers() if (o.zone, o.instance_type) == (best.name, best.instance_type))
    place = provider.known.place(offer.zone)
    group = requests.create_group(cluster_id, place.vpc_id)
    key = requests.import_key(cluster_id, TRIAL_KEY)
    instance = trial_request(provider, offer, cluster_id)
    shown = instance | {"KeyName": requests.name_of(cluster_id), "UserData": SECRET}
    shown["NetworkInterfaces"] = [shown["NetworkInterfaces"][0] | {"Groups": ["(the cluster's)"]}]
    once = Asked(action="", region=place.region, times="", request={}, accepted=True, answer="")
    each = f", once for each of {job.num_nodes} nodes, in the zones above" if job.num_nodes > 1 else ""
    rules = [requests.open_group_within("(the cluster's)")] + [
        requests.open_group_to("(the cluster's)", block) for block in provider.ssh_from()
    ]
    later = replace(once, action=_name(operations.OPEN_GROUP), answer="is asked once there is a group")
    return Rehearsal(
        num_nodes=job.num_nodes,
        spot_usd_per_hour=preview(job, market=market).spot_usd_per_hour,
        zones=market,
        warnings=(*storage_warnings(job), *quota_warnings(job)),
        requests=(
            _ask(provider, operations.CREATE_GROUP, once, group, group),
            *(replace(later, request=rule) for rule in rules),
            _ask(provider, operations.IMPORT_KEY, once, key, key | {"PublicKeyMaterial": "(made for this cluster)"}),
            _ask(provider, operations.RUN, replace(once, times=each), instance, shown),
        ),
    )


def _ask(
    provider: AwsProvider, operation: Operation, asked: Asked, request: requests.Request, shown: requests.Request
) -> Asked:
    asked = replace(asked, action=_name(operation), request=shown)
    try:
        dry_run(provider.calls, operation, asked.region, request)
    except CloudError as error:
        return replace(asked, accepted=False, answer=f"would not do it: {error.message}")
    return replace(asked, answer="would do it")


def _name(operation: Operation) -> str:
    return operation.action.partition(":")[2]
