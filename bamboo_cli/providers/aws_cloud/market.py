"""What instances cost: the spot price in force in each zone, its range over a week, and the price on demand."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bamboo_cli.errors import CloudError, CredentialsError, NotPermittedError, RequestRefusedError
from bamboo_cli.providers.aws_cloud import catalogue, operations, regions, requests
from bamboo_cli.providers.aws_cloud.calls import Calls

LIVE = "live"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPrice:
    zone: str
    instance_type: str
    now_usd_per_hour: float
    low_usd_per_hour: float
    high_usd_per_hour: float
    """Both over the time that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandPrice:
    usd_per_hour: float
    source: str
    """``live`` or ``catalogue.SOURCE``."""


def spot_prices(calls: Calls, region: str, types: Sequence[str], *, days: float = 0.0) -> tuple[SpotPrice, ...]:
    """By zone and type. Raises CloudError."""
    since = datetime.now(UTC) - timedelta(days=days)
    try:
        return prices_of(calls.items(operations.SPOT_PRICES, region, **requests.spot_prices(types, since)))
    except CloudError as error:
        raise regions.explained(calls, region, _explained(calls, region, types, error)) from error


def _explained(calls: Calls, region: str, types: Sequence[str], error: CloudError) -> CloudError:
    """Of a type that there is not, EC2 says here only that some argument is wrong."""
    if isinstance(error, RequestRefusedError):
        try:
            for instance_type in types:
                calls.items(operations.TYPES, region, InstanceTypes=[instance_type])
        except RequestRefusedError as told:
            return told
        except CloudError:
            pass
    return error


def prices_of(history: Iterable[Mapping[str, Any]]) -> tuple[SpotPrice, ...]:
    """The newest entry of a zone and type is the price in force; entries come in any order. Pure."""
    found: dict[tuple[str, str], list[tuple[datetime, float]]] = {}
    for entry in history:
        if entry["ProductDescription"].startswith(requests.SPOT_PRODUCT):
            key = (entry["AvailabilityZone"], entry["InstanceType"])
            found.setdefault(key, []).append((entry["Timestamp"], float(entry["SpotPrice"])))
    return tuple(
        SpotPrice(
            zone=zone,
            instance_type=instance_type,
            now_usd_per_hour=max(entries)[1],
            low_usd_per_hour=min(price for _, price in entries),
            high_usd_per_hour=max(price for _, price in entries),
        )
        for (zone, instance_type), entries in sorted(found.items())
    )


def on_demand_price(calls: Calls, region: str, instance_type: str) -> OnDemandPrice | None:
    """From AWS, or from the catalogue where AWS does not tell; None: neither knows. Raises CredentialsError."""
    try:
        products = calls.items(operations.ON_DEMAND_PRICES, region, **requests.on_demand_prices(instance_type, region))
        usd = usd_of(products)
        if usd is not None:
            return OnDemandPrice(usd_per_hour=usd, source=LIVE)
    except NotPermittedError:
        pass
    except CredentialsError:
        raise
    except CloudError:
        pass
    return catalogued(region, instance_type)


def catalogued(region: str, instance_type: str) -> OnDemandPrice | None:
    usd = catalogue.on_demand_usd_per_hour(region, instance_type)
    return None if usd is None else OnDemandPrice(usd_per_hour=usd, source=catalogue.SOURCE)


def usd_of(products: Iterable[str]) -> float | None:
    """The hourly price among products as the Pricing API has them: a JSON text each. Pure."""
    for product in products:
        for term in json.loads(product)["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                usd = float(dimension["pricePerUnit"].get("USD", 0.0))
                if dimension.get("unit") == "Hrs" and usd > 0.0:
                    return usd
    return None
