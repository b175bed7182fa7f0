"""The job file's ``aws`` section, a sentence per field."""

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from bamboo_cli.config_section import Section

MAX_USD_PER_HOUR = 10_000
REGION_PATTERN = r"^[a-z]{2}(-[a-z]+)+-[0-9]$"
ZONE_NAME_PATTERN = r"^[a-z]{2}(-[a-z]+)+-[0-9][a-z]$"
TYPE_PATTERN = r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$"
SUBNET_PATTERN = r"^subnet-[0-9a-f]+$"
BASTION_PATTERN = r"^[a-z_][a-z0-9_-]*@([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?$"
USER_PATTERN = r"^[a-z_][a-z0-9_-]*$"
ROLE_PATTERN = r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$"
PROFILE_PATTERN = r"^[A-Za-z0-9+=,.@_-]+$"
AWS_PATTERN_WORDS = {
    PROFILE_PATTERN: "the name of an instance profile, such as bamboo-node",
    ROLE_PATTERN: "the ARN of a role, such as arn:aws:iam::123456789012:role/bamboo-fis",
    REGION_PATTERN: "a region such as us-east-1",
    ZONE_NAME_PATTERN: "a zone such as us-east-1a",
    TYPE_PATTERN: "an instance type such as g5.xlarge",
    SUBNET_PATTERN: "a subnet such as subnet-0a1b2c3d",
    BASTION_PATTERN: "user@host or user@host:port",
    USER_PATTERN: "the name of a user, such as ubuntu",
}


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"`{text}` is no block of addresses ({error}); write 203.0.113.7/32, say") from None


def _image(text: str) -> str:
    if text == "auto" or re.match(r"^ami-[0-9a-f]+$", text) or text.startswith("/") or "*" in text:
        return text
    raise ValueError("write `auto`, an id (ami-...), the path of an SSM parameter (/aws/service/...), or a name with *")


class AwsConfig(Section):
    """Instances of EC2. Needs `pip install 'bamboo-train[aws]'` and credentials: see aws.md."""

    regions: tuple[Annotated[str, Field(pattern=REGION_PATTERN)], ...] = Field(
        ("us-east-1",),
        min_length=1,
        description="Where to rent, in this order; a cluster lives in one region at a time, the next is for when none "
        "is to be had in it.",
    )
    zones: tuple[Annotated[str, Field(pattern=ZONE_NAME_PATTERN)], ...] = Field(
        (), description="Only in these zones; by default in all in which one of the types is on offer."
    )
    types: tuple[Annotated[str, Field(pattern=TYPE_PATTERN)], ...] = Field(
        min_length=1, description="Instance types, the first that a zone has is taken: [g5.xlarge, g6.xlarge]."
    )
    max_price_usd_per_hour: float | None = Field(
        None,
        gt=0,
        le=MAX_USD_PER_HOUR,
        description="Pay no more than this for a spot instance; by default up to the price on demand.",
    )
    on_demand_fallback: bool = Field(
        False, strict=True, description="Whether to rent on demand when no zone has a spot instance of any type."
    )
    image: Annotated[str, AfterValidator(_image)] = Field(
        "auto",
        description="Image to boot: an id, the path of an SSM parameter, or a name with * (the newest of Amazon's or "
        "your own). `auto`: Ubuntu 24.04, on types with a GPU as the Deep Learning Base image, on others plain. "
        "An image needs Python 3.11 or newer.",
    )
    ssh_user: str = Field("ubuntu", pattern=USER_PATTERN, description="Who logs in on that image.")
    ssh_from: tuple[Annotated[str, AfterValidator(_network)], ...] | Literal["auto"] = Field(
        "auto",
        description="Blocks of addresses from which SSH is let in, such as [203.0.113.7/32]. `auto`: this machine's "
        "public address, as checkip.amazonaws.com sees it.",
    )
    bastion: str | None = Field(
        None,
        pattern=BASTION_PATTERN,
        description="Go through this host, `user@host`; instances then have no public address, and `ssh_from` is that "
        "of the bastion.",
    )
    subnets: tuple[Annotated[str, Field(pattern=SUBNET_PATTERN)], ...] = Field(
        (), description="Subnets to use, at most one per zone; by default those of each region's default VPC."
    )
    volume_gb: int = Field(100, ge=8, le=16384, description="Size of the root volume, in GB; at least the image's.")
    connect_within_min: float = Field(
        10.0,
        gt=0,
        le=100_000,
        description="Minutes in which an instance has to answer by SSH; one that does not is given back, and another "
        "rented.",
    )
    orphan_after_min: float = Field(
        60.0,
        ge=0,
        le=100_000,
        description="Minutes without a coordinator after which an instance shuts itself down; 0: never.",
    )
    idle_after_min: float = Field(
        120.0,
        ge=0,
        le=1_000_000,
        description="Minutes without a run after which the cluster gives all its nodes back; 0: never.",
    )
    torch_index_url: str | None = Field(
        None, min_length=1, description="Where nodes get torch from; by default PyPI's, which is built for CUDA."
    )
    wheelhouse: str | None = Field(
        None,
        min_length=1,
        description="Folder of wheels, relative to the job file: nodes install from it and need no internet.",
    )
    instance_profile: str | None = Field(
        None,
        pattern=PROFILE_PATTERN,
        description="IAM instance profile of the nodes, by name. They get no credentials of yours, so a "
        "`checkpoint.url` on S3 takes one that may read and write there.",
    )
    fault_injection_role: str | None = Field(
        None,
        pattern=ROLE_PATTERN,
        description="Role that the Fault Injection Service takes on for `bamboo preempt` with a notice.",
    )
    profile: str | None = Field(
        None, min_length=1, description="Profile of ~/.aws to use; by default what the environment says."
    )
