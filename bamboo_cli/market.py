"""What a job's cloud would rent it now, zone by zone, and the zones that it settles on before anything is rented."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bamboo_cli import jobs, paths
from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator.zones import region_of
from bamboo_cli.costs.ledger import UNKNOWN
from bamboo_cli.errors import CapacityError, CloudError
from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud import catalogue
from bamboo_cli.providers.base import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketZone:
    """A zone, and what is tried first in it."""

    name: str
    instance_type: str
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    price_source: str
    capacity: int | None = None
    """Instances that it holds; None: not known."""
    score: int | None = None
    """Of 10: how likely EC2 has what is wanted there. None: not told."""


def local_market(job: JobConfig) -> tuple[MarketZone, ...]:
    """Cheapest first. Pure."""
    return tuple(
        MarketZone(
            name=zone.name,
            instance_type=job.local.instance_type,
            spot_usd_per_hour=zone.spot_usd_per_hour,
            on_demand_usd_per_hour=zone.on_demand_usd_per_hour,
            price_source="job file",
            capacity=zone.capacity,
        )
        for zone in sorted(job.local.zones, key=lambda zone: zone.spot_usd_per_hour)
    )


def market_of(job: JobConfig) -> tuple[MarketZone, ...]:
    """Best first. Asks the cloud, unless it is the local one. Raises CloudError."""
    if job.cloud == "local":
        return local_market(job)
    return market_on(AwsProvider(paths.cluster_dir(job.name), jobs.aws_settings(job)), job)


def market_on(provider: AwsProvider, job: JobConfig) -> tuple[MarketZone, ...]:
    """Raises CapacityError where nothing is on offer; CloudError."""
    market = zones_on_offer(provider.known.offers())
    if not market:
        raise CapacityError(
            f"none of {', '.join(job.on_aws.types)} is on offer as a spot instance in {', '.join(job.on_aws.regions)}",
            next_step="Give other `aws.types`, `aws.regions` or `aws.zones`; `bamboo prices` shows what there is.",
        )
    return ranked(market, provider.known.scores(job.num_nodes), job.on_aws.regions)


def assumed_market(job: JobConfig) -> tuple[MarketZone, ...]:
    """Without asking: three zones of the first region, at the catalogue's prices on demand. Pure."""
    aws = job.on_aws
    known = catalogue.on_demand_usd_per_hour(aws.regions[0], aws.types[0])
    source = UNKNOWN if known is None else f"{catalogue.SOURCE}, spot taken to be as much"
    usual = known or 0.0
    zones = aws.zones or tuple(f"{aws.regions[0]}{letter}" for letter in "abc")
    return tuple(
        MarketZone(
            name=zone,
            instance_type=aws.types[0],
            spot_usd_per_hour=usual,
            on_demand_usd_per_hour=usual,
            price_source=source,
        )
        for zone in zones
    )


def zones_on_offer(offers: Iterable[Offer]) -> tuple[MarketZone, ...]:
    """Each zone with the first spot offer in it. Pure."""
    first: dict[str, MarketZone] = {}
    for offer in offers:
        if offer.is_spot and offer.zone not in first:
            first[offer.zone] = MarketZone(
                name=offer.zone,
                instance_type=offer.instance_type,
                spot_usd_per_hour=offer.spot_usd_per_hour,
                on_demand_usd_per_hour=offer.on_demand_usd_per_hour,
                price_source=offer.price_source,
            )
    return tuple(first.values())


def ranked(market: Iterable[MarketZone], scores: dict[str, int], regions: tuple[str, ...]) -> tuple[MarketZone, ...]:
    """Regions in the job's order; in each, where capacity is likeliest, then what is cheapest. Pure."""
    scored = [replace(zone, score=scores.get(zone.name)) for zone in market]
    return tuple(
        sorted(
            scored, key=lambda zone: (regions.index(region_of(zone.name)), -(zone.score or 0), zone.spot_usd_per_hour)
        )
    )


def too_dear(job: JobConfig, market: Iterable[MarketZone]) -> str:
    """Why no spot instance is to be had as long as prices are what they are; empty: some are. Pure."""
    limit = None if job.cloud == "local" else job.on_aws.max_price_usd_per_hour
    best = min(market, key=lambda zone: zone.spot_usd_per_hour)
    if limit is None or best.spot_usd_per_hour <= limit:
        return ""
    return (
        f"no zone sells for `aws.max_price_usd_per_hour`, ${limit:.4f}: the cheapest is {best.instance_type} in "
        f"{best.name} for ${best.spot_usd_per_hour:.4f}"
    )


def settle(job: JobConfig, market: Iterable[MarketZone]) -> JobConfig:
    """The job with the zones of its cluster, best first: its coordinator need not ask to know them. Pure."""
    if job.cloud == "local":
        return job
    zones = tuple(zone.name for zone in market)
    return job.model_copy(update={"aws": job.on_aws.model_copy(update={"zones": zones})})


def market_or_assumed(job: JobConfig) -> tuple[tuple[MarketZone, ...], str]:
    """For looking only: what could not be asked is assumed, with why."""
    try:
        return market_of(job), ""
    except CloudError as error:
        return assumed_market(job), error.message
