"""What EC2 sells: families and quotas, on-demand prices, the history of spot prices. Made up, always the same."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

ON_DEMAND_USD: Mapping[str, float] = {
    "c7i.large": 0.08925,
    "g4dn.xlarge": 0.526,
    "g4dn.2xlarge": 0.752,
    "g5.xlarge": 1.006,
    "g5.2xlarge": 1.212,
    "g5.12xlarge": 5.672,
    "g6.xlarge": 0.8048,
    "g6.2xlarge": 0.9776,
    "m7i.large": 0.1008,
    "p3.2xlarge": 3.06,
    "p4d.24xlarge": 21.95764,
    "p5.48xlarge": 55.04,
    "t3.micro": 0.0104,
}
QUOTA_NAMES: Mapping[str, str] = {
    "L-3819A6DF": "All G and VT Spot Instance Requests",
    "L-7212CCBC": "All P4, P3 and P2 Spot Instance Requests",
    "L-C4BD4855": "All P5 Spot Instance Requests",
    "L-34B43A08": "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
    "L-6B0D517C": "All Trn Spot Instance Requests",
    "L-B5D1601B": "All Inf Spot Instance Requests",
    "L-E3A00192": "All X Spot Instance Requests",
    "L-85EED4F7": "All DL Spot Instance Requests",
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-417A185B": "Running On-Demand P instances",
    "L-2C3B7624": "Running On-Demand Trn instances",
    "L-1945791B": "Running On-Demand Inf instances",
    "L-7295265B": "Running On-Demand X instances",
    "L-6E869C2A": "Running On-Demand DL instances",
    "L-1216C47A": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
}
QUOTA_CODES = (
    ("g", ("L-3819A6DF", "L-DB2E81BA")),
    ("vt", ("L-3819A6DF", "L-DB2E81BA")),
    ("p5", ("L-C4BD4855", "L-417A185B")),
    ("p", ("L-7212CCBC", "L-417A185B")),
    ("trn", ("L-6B0D517C", "L-2C3B7624")),
    ("inf", ("L-B5D1601B", "L-1945791B")),
    ("x", ("L-E3A00192", "L-7295265B")),
    ("dl", ("L-85EED4F7", "L-6E869C2A")),
)
STANDARD = ("L-34B43A08", "L-1216C47A")
"""By how a family's name begins: the quotas of spot and on demand."""
PRODUCTS = ("Linux/UNIX", "Windows")
PRICE_CHANGE_S = 6 * 3600.0
HISTORY_DAYS = 90
"""What EC2 keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricePoint:
    """From ``at`` on, until the next point of its type, zone and product."""

    at: float
    instance_type: str
    zone: str
    product: str
    usd: float


def num_vcpus(instance_type: str) -> int:
    return int(INSTANCE_TYPES[instance_type]["VCpuInfo"]["DefaultVCpus"])


def is_known(instance_type: str) -> bool:
    return instance_type in INSTANCE_TYPES


def zones_with(region: str, instance_type: str) -> tuple[str, ...]:
    offerings: list[dict[str, Any]] = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return tuple(sorted(o["Location"] for o in offerings if o["InstanceType"] == instance_type))


def types_in(region: str) -> tuple[str, ...]:
    return tuple(sorted(o["InstanceType"] for o in INSTANCE_TYPE_OFFERINGS["region"].get(region, [])))


def quota_code(instance_type: str, *, is_spot: bool) -> str:
    family = instance_type.split(".")[0]
    codes = next((codes for beginning, codes in QUOTA_CODES if family.startswith(beginning)), STANDARD)
    return codes[0] if is_spot else codes[1]


def on_demand_usd(instance_type: str) -> float:
    return ON_DEMAND_USD.get(instance_type, 0.05 * num_vcpus(instance_type))


def spot_history(instance_type: str, zone: str, *, now: float, days: int = HISTORY_DAYS) -> Iterator[PricePoint]:
    """Newest first, one every six hours. About 0.3 to 0.5 of the on-demand price, by zone and time."""
    newest = int(now // PRICE_CHANGE_S)
    for index in range(newest, newest - int(days * 86400 / PRICE_CHANGE_S), -1):
        for product in PRODUCTS:
            usd = on_demand_usd(instance_type) * _share(instance_type, zone, index) + (product == "Windows") * 0.2
            yield PricePoint(
                at=index * PRICE_CHANGE_S, instance_type=instance_type, zone=zone, product=product, usd=round(usd, 6)
            )


def _share(instance_type: str, zone: str, index: int) -> float:
    base = _draw(f"{instance_type} {zone}")
    return 0.3 + 0.15 * base + 0.05 * _draw(f"{instance_type} {zone} {index}")


def _draw(text: str) -> float:
    """In [0, 1), a function of the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32
