"""Prices on demand that ship with Bamboo, for where the Pricing API may not be asked. USD per hour, Linux, shared.

They are those of us-east-1, us-east-2 and us-west-2, which are the same for these types; nothing is said of others.
"""

DATE = "2026-11-30"
"""Of this list. AWS lowers prices now and then and hardly ever raises them."""
SOURCE = f"an estimate of {DATE}"
"""What such a price is called wherever it is shown: AWS has not told it."""

REGIONS = ("us-east-1", "us-east-2", "us-west-2")
_USD_PER_HOUR = {
    "g4dn.xlarge": 0.526,
    "g4dn.2xlarge": 0.752,
    "g4dn.4xlarge": 1.204,
    "g4dn.8xlarge": 2.176,
    "g4dn.12xlarge": 3.912,
    "g4dn.16xlarge": 4.352,
    "g4dn.metal": 7.824,
    "g5.xlarge": 1.006,
    "g5.2xlarge": 1.212,
    "g5.4xlarge": 1.624,
    "g5.8xlarge": 2.448,
    "g5.12xlarge": 5.672,
    "g5.16xlarge": 4.096,
    "g5.24xlarge": 8.144,
    "g5.48xlarge": 16.288,
    "g6.xlarge": 0.8048,
    "g6.2xlarge": 0.9776,
    "g6.4xlarge": 1.3232,
    "g6.8xlarge": 2.0144,
    "g6.12xlarge": 4.6016,
    "g6.16xlarge": 3.3968,
    "g6.24xlarge": 6.6752,
    "g6.48xlarge": 13.3504,
    "g6e.xlarge": 1.861,
    "g6e.2xlarge": 2.24208,
    "g6e.4xlarge": 3.00424,
    "g6e.8xlarge": 4.52856,
    "g6e.12xlarge": 10.49264,
    "g6e.16xlarge": 7.57719,
    "g6e.24xlarge": 15.06559,
    "g6e.48xlarge": 30.13118,
    "p3.2xlarge": 3.06,
    "p3.8xlarge": 12.24,
    "p3.16xlarge": 24.48,
    "p4d.24xlarge": 21.957642,
    "p4de.24xlarge": 27.44705,
    "p5.4xlarge": 6.88,
    "p5.48xlarge": 55.04,
    "c5.large": 0.085,
    "c5.xlarge": 0.17,
    "c5.2xlarge": 0.34,
    "c5.4xlarge": 0.68,
    "m5.large": 0.096,
    "m5.xlarge": 0.192,
    "t3.medium": 0.0416,
    "t3.large": 0.0832,
}


def on_demand_usd_per_hour(region: str, instance_type: str) -> float | None:
    """None: not in the list."""
    return _USD_PER_HOUR.get(instance_type) if region in REGIONS else None


def instance_types() -> tuple[str, ...]:
    return tuple(_USD_PER_HOUR)
