"""What instance types cost in each zone, now and over a week, beside what our own clusters have met there."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli.coordinator.reader import read_rented
from bamboo_cli.coordinator.status import Rented
from bamboo_cli.errors import CloudError, StateError
from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud.images import TypeFacts
from bamboo_cli.providers.aws_cloud.market import SpotPrice
from bamboo_cli.providers.base import EndReason

USUAL_TYPES = ("g4dn.xlarge", "g5.xlarge", "g6.xlarge", "g6e.xlarge", "g5.12xlarge", "g6.12xlarge", "p4d.24xlarge")
"""Where neither a job nor ``--type`` names any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    instance_type: str
    gpu: str | None
    memory_gb: float | None
    zone: str
    spot_usd_per_hour: float
    low_usd_per_hour: float
    high_usd_per_hour: float
    """Both over 7 days."""
    on_demand_usd_per_hour: float | None
    on_demand_source: str
    num_rented: int
    num_taken: int
    rented_s: float
    """By clusters on this machine's record."""

    @property
    def saving(self) -> float | None:
        if not self.on_demand_usd_per_hour:
            return None
        return 1.0 - self.spot_usd_per_hour / self.on_demand_usd_per_hour


def price_rows(provider: AwsProvider, clusters_dir: Path, now: float) -> tuple[PriceRow, ...]:
    """Regions in order, types in order, cheapest zone first. Raises CloudError."""
    rented = history(clusters_dir)
    return tuple(
        _row(provider, region, price, rented, now)
        for region in provider.settings.regions
        for price in sorted(provider.known.week(region), key=lambda price: _order(provider, price))
        if not provider.settings.zones or price.zone in provider.settings.zones
    )


def history(clusters_dir: Path) -> tuple[Rented, ...]:
    """Of all clusters that were ever made here; a file that cannot be read tells nothing."""
    found: list[Rented] = []
    for path in sorted(clusters_dir.glob("*/*.db")):
        try:
            found += read_rented(path)
        except StateError:
            continue
    return tuple(found)


def _order(provider: AwsProvider, price: SpotPrice) -> tuple[int, float]:
    return provider.settings.types.index(price.instance_type), price.now_usd_per_hour


def _row(provider: AwsProvider, region: str, price: SpotPrice, rented: Iterable[Rented], now: float) -> PriceRow:
    facts = _facts(provider, region, price.instance_type)
    usual = provider.known.on_demand(region, price.instance_type)
    here = [r for r in rented if (r.zone, r.instance_type) == (price.zone, price.instance_type)]
    return PriceRow(
        instance_type=price.instance_type,
        gpu=facts.gpu if facts else None,
        memory_gb=facts.memory_gb if facts else None,
        zone=price.zone,
        spot_usd_per_hour=price.now_usd_per_hour,
        low_usd_per_hour=price.low_usd_per_hour,
        high_usd_per_hour=price.high_usd_per_hour,
        on_demand_usd_per_hour=usual.usd_per_hour if usual else None,
        on_demand_source=usual.source if usual else "not known",
        num_rented=len(here),
        num_taken=sum(r.end_reason == EndReason.PREEMPTED for r in here),
        rented_s=sum((now if r.ended_at is None else r.ended_at) - r.launched_at for r in here),
    )


def _facts(provider: AwsProvider, region: str, instance_type: str) -> TypeFacts | None:
    try:
        return provider.known.facts(region, instance_type)
    except CloudError:
        return None
