"""``bamboo check aws``: everything that may stand in the way of a job, looked at without renting anything.

EC2 answers a dry run with whether it would do the thing. What can be tried that way is; ending things can not, since
there is nothing to end yet.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bamboo_trainer import storage

from bamboo_cli.config import JobConfig
from bamboo_cli.errors import BastionError, CloudError, RequestRefusedError
from bamboo_cli.keys import KeyPair
from bamboo_cli.preview import storage_warnings
from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud import operations, regions, requests
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.providers.aws_cloud.known import AwsSettings, Known
from bamboo_cli.providers.aws_cloud.network import Place
from bamboo_cli.providers.aws_cloud.quotas import how_to_raise, quota_of, worth_asking_for
from bamboo_cli.providers.base import Offer

TRIAL = "check"
"""Stands for the cluster, node and token of what is only tried."""
TRIAL_KEY = KeyPair(
    private="(made before the launch)",
    public="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
)
NOT_TRIED = (
    operations.OPEN_GROUP,
    operations.CLOSE_GROUP,
    operations.TERMINATE,
    operations.CANCEL_SPOT_REQUESTS,
    operations.DELETE_VOLUME,
    operations.DELETE_INTERFACE,
    operations.DELETE_GROUP,
    operations.DELETE_KEY,
)


class Verdict(StrEnum):
    OK = "ok"
    PROBLEM = "problem"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    subject: str
    verdict: Verdict
    text: str
    next_step: str = ""


def check(provider: AwsProvider, job: JobConfig) -> Iterator[Finding]:
    """Finding by finding, since each takes a moment. Ends early when AWS does not know us."""
    settings, calls = provider.settings, provider.calls
    try:
        who = _who(calls, settings.regions[0])
    except CloudError as error:
        yield _problem("identity", error)
        return
    yield Finding(subject="identity", verdict=Verdict.OK, text=who["Arn"])
    yield from _tried("ssh_from", lambda: f"SSH is let in from {', '.join(provider.ssh_from())}")
    if settings.bastion is not None:
        yield _bastion(settings.bastion)
    for region in settings.regions:
        yield from _check_region(provider, region, job.num_nodes)
    yield _checkpoints(job)
    names = ", ".join(operation.action for operation in NOT_TRIED)
    text = f"cannot be tried before there is a cluster: {names}"
    yield Finding(
        subject="ending things",
        verdict=Verdict.UNKNOWN,
        text=text,
        next_step="`bamboo check aws --policy` prints a policy that allows them.",
    )


def _who(calls: Calls, region: str) -> dict[str, Any]:
    """A region that is not enabled knows nobody; that is told of the region, and not here. Raises CloudError."""
    try:
        return calls.ask(operations.WHO_AM_I, region)
    except CloudError as error:
        if not isinstance(regions.explained(calls, region, error), RequestRefusedError):
            raise
    return calls.ask(operations.WHO_AM_I, regions.FIRST_REGION)


def _checkpoints(job: JobConfig) -> Finding:
    """Whether they can be read and written is tried by ``up``, from here; nodes have rights of their own."""
    subject, url = "checkpoints", job.checkpoint.url or ""
    package = storage.missing_package(url)
    if package is not None:
        text = f"{url} needs {package}, which is not installed"
        step = f"Install it with: pip install {package}"
        return Finding(subject=subject, verdict=Verdict.PROBLEM, text=text, next_step=step)
    if doubts := storage_warnings(job):
        step = "See docs/aws.md: a bucket, and a profile for the nodes."
        return Finding(subject=subject, verdict=Verdict.UNKNOWN, text=f"{url}: {doubts[0]}", next_step=step)
    return Finding(subject=subject, verdict=Verdict.OK, text=url)


def _bastion(spelt: str) -> Finding:
    from bamboo_cli.remote import bastion

    try:
        bastion.connect(spelt).close()
    except BastionError as error:
        return Finding(subject="bastion", verdict=Verdict.PROBLEM, text=error.message, next_step=error.next_step)
    return Finding(subject="bastion", verdict=Verdict.OK, text=f"{spelt} lets us in")


def _check_region(provider: AwsProvider, region: str, num_nodes: int) -> Iterator[Finding]:
    known, settings = provider.known, provider.settings
    try:
        places = known.places(region)
    except CloudError as error:
        yield _problem(f"{region} subnets", error)
        if regions.explained(provider.calls, region, error) is error:  # there is such a region, and it is ours
            for instance_type in settings.types:
                yield from _check_type(known, region, instance_type, None, num_nodes)
        return
    text = ", ".join(f"{place.zone} {place.subnet_id}" for place in places)
    yield Finding(subject=f"{region} subnets", verdict=Verdict.OK, text=text)
    without = set(settings.zones) - {place.zone for place in places}
    if here := sorted(zone for zone in without if zone.startswith(region)):
        yield Finding(
            subject=f"{region} zones",
            verdict=Verdict.PROBLEM,
            text=f"there is no subnet in {', '.join(here)}",
            next_step="Correct `aws.zones`, or give `aws.subnets`.",
        )
    for instance_type in settings.types:
        yield from _check_type(known, region, instance_type, places, num_nodes)
    yield from _check_price(known, region, settings)
    for subject, operation, question in _trials(provider, region, places):
        yield _dry_run(provider.calls, f"{region} {subject}", operation, region, question)


def _check_type(
    known: Known, region: str, instance_type: str, places: tuple[Place, ...] | None, num_nodes: int
) -> Iterator[Finding]:
    """``places`` None: they are another problem; a quota takes days, and is better asked for at once."""
    subject = f"{region} {instance_type}"
    try:
        facts = known.facts(region, instance_type)
        having = known.zones_with(region, instance_type)
        zones = having if places is None else [zone for zone in having if zone in {place.zone for place in places}]
    except CloudError as error:
        yield _problem(subject, error)
        return
    what = f"{facts.num_vcpus} vCPUs, {facts.memory_gb:.0f} GB, {facts.gpu or 'no GPU'}"
    if zones:
        yield Finding(subject=subject, verdict=Verdict.OK, text=f"{what}; in {', '.join(zones)}")
    else:
        yield Finding(
            subject=subject,
            verdict=Verdict.PROBLEM,
            text=f"{what}; in none of the zones",
            next_step="Take it out of `aws.types`, or give other `aws.zones`, `aws.subnets` or `aws.regions`.",
        )
    yield from _tried(f"{subject} image", lambda: _image(known, region, instance_type))
    yield _quota(known, region, instance_type, facts.num_vcpus, num_nodes)


def _image(known: Known, region: str, instance_type: str) -> str:
    image = known.image(region, instance_type)
    return f"{image.image_id} {image.name} ({image.root_gb} GB)"


def _quota(known: Known, region: str, instance_type: str, num_vcpus: int, num_nodes: int) -> Finding:
    needed = num_vcpus * num_nodes
    subject = f"{region} {instance_type} quota"
    quota = quota_of(instance_type, spot=True)
    if quota is None:
        return Finding(subject=subject, verdict=Verdict.UNKNOWN, text="which one counts is not known")
    there = known.quota(region, quota.code)
    name = f"{quota.name} ({quota.code})"
    if there is None:
        text = f"{name} may not be read; {needed} vCPUs are needed"
        return Finding(subject=subject, verdict=Verdict.UNKNOWN, text=text)
    text = f"{name}: {there:.0f} vCPUs, {needed} are needed"
    if there >= needed:
        return Finding(subject=subject, verdict=Verdict.OK, text=text)
    return Finding(
        subject=subject,
        verdict=Verdict.PROBLEM,
        text=text,
        next_step=how_to_raise(quota, region, worth_asking_for(num_nodes, num_vcpus)),
    )


def _check_price(known: Known, region: str, settings: AwsSettings) -> Iterator[Finding]:
    subject = f"{region} price"
    try:
        offers = [offer for offer in known.offers_in(region) if offer.is_spot]
    except CloudError as error:
        yield _problem(subject, error)
        return
    if not offers:
        yield Finding(subject=subject, verdict=Verdict.PROBLEM, text="no spot price for any of the types")
        return
    best = min(offers, key=lambda offer: offer.spot_usd_per_hour)
    text = (
        f"spot from ${best.spot_usd_per_hour:.4f} an hour ({best.instance_type} in {best.zone}), "
        f"on demand ${best.on_demand_usd_per_hour:.4f} ({best.price_source})"
    )
    limit = settings.max_price_usd_per_hour
    if limit is not None and limit < best.spot_usd_per_hour:
        step = f"Raise `aws.max_price_usd_per_hour`, which is {limit}."
        yield Finding(subject=subject, verdict=Verdict.PROBLEM, text=text, next_step=step)
    else:
        yield Finding(subject=subject, verdict=Verdict.OK, text=text)


# --- dry runs ----------------------------------------------------------------------------------------------------


def _trials(
    provider: AwsProvider, region: str, places: tuple[Place, ...]
) -> Iterator[tuple[str, operations.Operation, requests.Request]]:
    vpc_id = places[0].vpc_id
    yield "group", operations.CREATE_GROUP, requests.create_group(TRIAL, vpc_id)
    yield "key pair", operations.IMPORT_KEY, requests.import_key(TRIAL, TRIAL_KEY)
    try:
        offers = [offer for offer in provider.known.offers_in(region) if offer.is_spot]
        request = trial_request(provider, offers[0], TRIAL)
    except (CloudError, IndexError):
        return  # told before
    yield "instance", operations.RUN, request


def trial_request(provider: AwsProvider, offer: Offer, cluster_id: str) -> requests.Request:
    """As it would be sent for the first node, but for what is made only then: group, key pair, host key.

    Raises CloudError."""
    request = provider.request(offer, cluster_id, "n1", f"{cluster_id}-n1-1", None, TRIAL_KEY)
    return {name: value for name, value in request.items() if name != "KeyName"}


def dry_run(calls: Calls, operation: operations.Operation, region: str, question: requests.Request) -> None:
    """Raises CloudError unless EC2 would do it."""
    calls.call(operation, region, expected=("DryRunOperation",), DryRun=True, **question)


def _dry_run(
    calls: Calls, subject: str, operation: operations.Operation, region: str, question: requests.Request
) -> Finding:
    try:
        dry_run(calls, operation, region, question)
    except CloudError as error:
        return _problem(subject, error)
    return Finding(subject=subject, verdict=Verdict.OK, text=f"{operation.action} would be done")


def _tried(subject: str, work: Callable[[], Any]) -> Iterator[Finding]:
    try:
        yield Finding(subject=subject, verdict=Verdict.OK, text=work())
    except CloudError as error:
        yield _problem(subject, error)


def _problem(subject: str, error: CloudError) -> Finding:
    return Finding(subject=subject, verdict=Verdict.PROBLEM, text=error.message, next_step=error.next_step)
