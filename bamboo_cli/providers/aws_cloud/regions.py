"""Regions that there are, and those of them that an account may use."""

import difflib

from bamboo_cli.errors import CloudError, RequestRefusedError
from bamboo_cli.providers.aws_cloud import operations
from bamboo_cli.providers.aws_cloud.calls import Calls

FIRST_REGION = "us-east-1"
"""Knows of all others."""
NOT_ENABLED = "not-opted-in"


def all_regions(calls: Calls) -> tuple[str, ...]:
    """That the account may use. Raises CloudError."""
    return tuple(sorted(region["RegionName"] for region in calls.ask(operations.REGIONS, FIRST_REGION)["Regions"]))


def explained(calls: Calls, region: str, error: CloudError) -> CloudError:
    """In a region that the account has not enabled, EC2 says that it does not know us; of one that there is not, no
    answer comes. Who reads that would mend credentials and networks that are well."""
    try:
        found = {
            one["RegionName"]: one for one in calls.ask(operations.REGIONS, FIRST_REGION, AllRegions=True)["Regions"]
        }
    except CloudError:
        return error
    if region not in found:
        near = difflib.get_close_matches(region, found, n=2)  # us-esat-1 is as near to us-west-1 as to us-east-1
        hint = f": did you mean {' or '.join(near)}?" if near else "."
        return RequestRefusedError(f"there is no region {region}", next_step=f"Correct `aws.regions`{hint}")
    if found[region].get("OptInStatus") == NOT_ENABLED:
        return RequestRefusedError(
            f"{region} is not enabled for this account",
            next_step=f"`aws account enable-region --region-name {region}` enables it, which takes a while; or take it "
            "out of `aws.regions`.",
        )
    return error
