"""Which quota an instance type counts against, and how many vCPUs a job needs of it. Pure.

Codes: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-quotas.html
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Of vCPUs that run at a time, per region. New accounts often have 0."""

    code: str
    name: str


_SPOT: tuple[tuple[str, Quota], ...] = (
    (r"p5|p5e|p5en", Quota(code="L-C4BD4855", name="All P5 Spot Instance Requests")),
    (r"g|gr|vt", Quota(code="L-3819A6DF", name="All G and VT Spot Instance Requests")),
    (r"p", Quota(code="L-7212CCBC", name="All P4, P3 and P2 Spot Instance Requests")),
    (r"trn", Quota(code="L-6B0D517C", name="All Trn Spot Instance Requests")),
    (r"inf", Quota(code="L-B5D1601B", name="All Inf Spot Instance Requests")),
    (r"x", Quota(code="L-E3A00192", name="All X Spot Instance Requests")),
    (r"dl", Quota(code="L-85EED4F7", name="All DL Spot Instance Requests")),
    (
        r"[acdhimrtz]|im|is",
        Quota(code="L-34B43A08", name="All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
    ),
)
_ON_DEMAND: tuple[tuple[str, Quota], ...] = (
    (r"g|gr|vt", Quota(code="L-DB2E81BA", name="Running On-Demand G and VT instances")),
    (r"p", Quota(code="L-417A185B", name="Running On-Demand P instances")),
    (r"trn", Quota(code="L-2C3B7624", name="Running On-Demand Trn instances")),
    (r"inf", Quota(code="L-1945791B", name="Running On-Demand Inf instances")),
    (r"x", Quota(code="L-7295265B", name="Running On-Demand X instances")),
    (r"dl", Quota(code="L-6E869C2A", name="Running On-Demand DL instances")),
    (
        r"[acdhimrtz]|im|is",
        Quota(code="L-1216C47A", name="Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
    ),
)


def quota_of(instance_type: str, *, spot: bool) -> Quota | None:
    """None: a family that we do not know."""
    family = instance_type.partition(".")[0]
    letters = re.match(r"[a-z]+", family)
    for pattern, quota in _SPOT if spot else _ON_DEMAND:
        if re.fullmatch(pattern, family) or (letters and re.fullmatch(pattern, letters.group())):
            return quota
    return None


def worth_asking_for(num_nodes: int, num_vcpus: int) -> int:
    """vCPUs: of one node more, since the place of one that has a notice is taken before it is gone."""
    return (num_nodes + 1) * num_vcpus


def how_to_raise(quota: Quota, region: str, wanted: int | None = None) -> str:
    """``wanted``: vCPUs; None: the user knows."""
    return (
        "Ask for more: `aws service-quotas request-service-quota-increase --service-code ec2 "
        f"--quota-code {quota.code} --region {region} --desired-value {'N' if wanted is None else wanted}`, "
        "or in the Service Quotas console. It takes hours or days."
    )
