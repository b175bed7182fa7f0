"""What AWS was asked and what holds for a while: places, prices, types, images, quotas. See docs/aws.md."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from bamboo_cli.errors import CloudError, RequestRefusedError
from bamboo_cli.providers.aws_cloud import market, network, operations, requests
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.providers.aws_cloud.images import Image, TypeFacts, facts_of, find_image
from bamboo_cli.providers.aws_cloud.network import Place
from bamboo_cli.providers.base import ON_DEMAND, Offer

SPOT_PRICES_S = 60.0
"""How long what was asked is taken for true, in seconds."""
PLACES_S = 600.0
LONG_S = 24 * 3600.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    """What is to be rented where; the job's ``aws`` section. Without types it is enough to list and to terminate."""

    regions: tuple[str, ...]
    zones: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    max_price_usd_per_hour: float | None = None
    on_demand_fallback: bool = False
    image: str = "auto"
    ssh_user: str = "ubuntu"
    ssh_from: tuple[str, ...] | None = None
    """None: from this machine's own public address."""
    bastion: str | None = None
    subnets: tuple[str, ...] = ()
    volume_gb: int = 100
    profile: str | None = None
    instance_profile: str | None = None
    fault_injection_role: str | None = None


class Known:
    """Thread-safe; one question at a time, so that 64 nodes that come together ask once."""

    def __init__(self, calls: Calls, settings: AwsSettings) -> None:
        self._calls = calls
        self._settings = settings
        self._answers: dict[tuple[Any, ...], tuple[float, Any]] = {}
        self._lock = threading.RLock()

    def offers(self) -> tuple[Offer, ...]:
        """Regions in order; in each, types in the job's order, the cheapest zone first, on demand last.

        A region in trouble does not keep us from renting in the others. Raises CloudError when all are.
        """
        found: list[Offer] = []
        troubles: list[CloudError] = []
        for region in self._settings.regions:
            try:
                found += self.offers_in(region)
            except CloudError as error:
                troubles.append(error)
        if len(troubles) == len(self._settings.regions):
            raise troubles[0]
        return tuple(found)

    def offers_in(self, region: str) -> list[Offer]:
        """Raises CloudError."""
        types = self._settings.types
        zones = {place.zone for place in self.places(region)}
        prices = self.remembered(
            ("spot", region), SPOT_PRICES_S, lambda: market.spot_prices(self._calls, region, types)
        )
        in_order = sorted(prices, key=lambda price: (types.index(price.instance_type), price.now_usd_per_hour))
        offers = [self._offer(region, p.zone, p.instance_type, p.now_usd_per_hour) for p in in_order if p.zone in zones]
        if self._settings.on_demand_fallback:
            had = [(o.instance_type, o.zone) for o in offers]
            offers += [self._offer(region, zone, kind, None) for kind, zone in had]
        return offers

    def _offer(self, region: str, zone: str, instance_type: str, spot: float | None) -> Offer:
        """``spot`` None: on demand."""
        known = self.on_demand(region, instance_type)
        usual = known.usd_per_hour if known else spot or 0.0
        source = market.LIVE
        if known is None:
            source = f"{market.LIVE}{ON_DEMAND}unknown, taken to be that of spot"
        elif known.source != market.LIVE:
            source = f"{market.LIVE}{ON_DEMAND}{known.source}"
        return Offer(
            instance_type=instance_type,
            zone=zone,
            spot_usd_per_hour=usual if spot is None else spot,
            on_demand_usd_per_hour=max(usual, spot or 0.0),
            price_source=source,
            is_spot=spot is not None,
        )

    def places(self, region: str) -> tuple[Place, ...]:
        """Raises RequestRefusedError, CloudError."""
        settings = self._settings
        return self.remembered(
            ("places", region),
            PLACES_S,
            lambda: network.find_places(self._calls, region, settings.subnets, settings.zones),
        )

    def scores(self, num_nodes: int) -> dict[str, int]:
        """By zone, of 10: how likely so many are to be had there now. Empty where EC2 does not tell, or may not."""
        found: dict[str, int] = {}
        for region in self._settings.regions:
            question = requests.placement_scores(self._settings.types, num_nodes, region)
            try:
                by_id = {place.zone_id: place.zone for place in self.places(region)}
                told = self._calls.items(operations.PLACEMENT_SCORES, region, **question)
            except CloudError:
                continue
            found |= {
                by_id[one["AvailabilityZoneId"]]: one["Score"] for one in told if one["AvailabilityZoneId"] in by_id
            }
        return found

    def on_demand(self, region: str, instance_type: str) -> market.OnDemandPrice | None:
        return self.remembered(
            ("on demand", region, instance_type),
            LONG_S,
            lambda: market.on_demand_price(self._calls, region, instance_type),
        )

    def week(self, region: str) -> tuple[market.SpotPrice, ...]:
        """Spot prices now, and their range over a week, in all zones of the region. Raises CloudError."""
        types = self._settings.types
        return self.remembered(
            ("week", region), PLACES_S, lambda: market.spot_prices(self._calls, region, types, days=7.0)
        )

    def zones_with(self, region: str, instance_type: str) -> tuple[str, ...]:
        """In which EC2 has the type at all. Raises CloudError."""

        def ask() -> tuple[str, ...]:
            filters = [{"Name": "instance-type", "Values": [instance_type]}]
            found = self._calls.items(
                operations.TYPE_OFFERINGS, region, LocationType="availability-zone", Filters=filters
            )
            return tuple(sorted(one["Location"] for one in found))

        return self.remembered(("zones", region, instance_type), LONG_S, ask)

    def facts(self, region: str, instance_type: str) -> TypeFacts:
        """Raises RequestRefusedError for a type that the region does not know."""

        def ask() -> TypeFacts:
            found = self._calls.items(operations.TYPES, region, InstanceTypes=[instance_type])
            if not found:
                raise RequestRefusedError(f"{region} has no instance type {instance_type}")
            return facts_of(found[0])

        return self.remembered(("type", region, instance_type), LONG_S, ask)

    def image(self, region: str, instance_type: str) -> Image:
        facts = self.facts(region, instance_type)
        return self.remembered(
            ("image", region, instance_type),
            LONG_S,
            lambda: find_image(self._calls, region, self._settings.image, facts),
        )

    def quota(self, region: str, code: str) -> float | None:
        """In vCPUs; None where it may not be read, or is not known there."""
        try:
            answer = self._calls.call(
                operations.QUOTA,
                region,
                expected=("NoSuchResourceException",),
                ServiceCode="ec2",
                QuotaCode=code,
            )
        except CloudError:
            return None
        return None if answer is None else float(answer["Quota"]["Value"])

    def place(self, zone: str) -> Place:
        for region in self._settings.regions:
            if zone.startswith(region):
                for place in self.places(region):
                    if place.zone == zone:
                        return place
        raise RequestRefusedError(
            f"there is no subnet in zone {zone}", next_step="Correct `aws.zones` or `aws.subnets`."
        )

    def remembered(self, key: tuple[Any, ...], for_s: float, ask: Callable[[], _T]) -> _T:
        """The answer of the last ``for_s`` seconds, or a new one."""
        with self._lock:
            found = self._answers.get(key)
            now = time.monotonic()
            if found is None or now - found[0] > for_s:
                found = now, ask()
                self._answers[key] = found
            answer: _T = found[1]
            return answer

    def forget(self) -> None:
        """What is remembered may be why a request was refused."""
        with self._lock:
            self._answers.clear()
