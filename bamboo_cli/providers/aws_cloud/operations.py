"""Every call that is made to AWS, and what one must be allowed to do for it. Nothing else is ever called.

``templates/bamboo_templates/aws-policy.json`` allows exactly this; a test compares them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    service: str
    """As boto3 calls it."""
    method: str
    actions: tuple[str, ...]
    """That a policy has to allow."""
    pages: str | None = None
    """The key under which a page has its items; None: there is one page only."""
    once: bool = False
    """Sent once: whether it is sent again is not for the SDK to decide."""

    @property
    def action(self) -> str:
        """The one that a refusal is about."""
        return self.actions[0]


def _ec2(method: str, action: str, *more: str, pages: str | None = None, once: bool = False) -> Operation:
    return Operation(service="ec2", method=method, actions=(f"ec2:{action}", *more), pages=pages, once=once)


# --- who we are, and what there is -------------------------------------------------------------------------------

WHO_AM_I = Operation(service="sts", method="get_caller_identity", actions=("sts:GetCallerIdentity",))
REGIONS = _ec2("describe_regions", "DescribeRegions")
SUBNETS = _ec2("describe_subnets", "DescribeSubnets", pages="Subnets")
TYPES = _ec2("describe_instance_types", "DescribeInstanceTypes", pages="InstanceTypes")
TYPE_OFFERINGS = _ec2(
    "describe_instance_type_offerings", "DescribeInstanceTypeOfferings", pages="InstanceTypeOfferings"
)
IMAGES = _ec2("describe_images", "DescribeImages")
PARAMETER = Operation(service="ssm", method="get_parameter", actions=("ssm:GetParameter",))
QUOTA = Operation(service="service-quotas", method="get_service_quota", actions=("servicequotas:GetServiceQuota",))
SPOT_PRICES = _ec2("describe_spot_price_history", "DescribeSpotPriceHistory", pages="SpotPriceHistory")
PLACEMENT_SCORES = _ec2("get_spot_placement_scores", "GetSpotPlacementScores", pages="SpotPlacementScores")
ON_DEMAND_PRICES = Operation(
    service="pricing", method="get_products", actions=("pricing:GetProducts",), pages="PriceList"
)

# --- renting -----------------------------------------------------------------------------------------------------

RUN = _ec2("run_instances", "RunInstances", "ec2:CreateTags", "iam:CreateServiceLinkedRole", "iam:PassRole", once=True)
"""The role that is made is EC2's own for spot instances, with an account's first one; the one that is passed is that of
the nodes' instance profile."""
CREATE_GROUP = _ec2("create_security_group", "CreateSecurityGroup", "ec2:CreateTags")
OPEN_GROUP = _ec2("authorize_security_group_ingress", "AuthorizeSecurityGroupIngress")
CLOSE_GROUP = _ec2("revoke_security_group_ingress", "RevokeSecurityGroupIngress")
IMPORT_KEY = _ec2("import_key_pair", "ImportKeyPair", "ec2:CreateTags")

# --- what is there, by tag ---------------------------------------------------------------------------------------

INSTANCES = _ec2("describe_instances", "DescribeInstances", pages="Reservations")
SPOT_REQUESTS = _ec2("describe_spot_instance_requests", "DescribeSpotInstanceRequests", pages="SpotInstanceRequests")
VOLUMES = _ec2("describe_volumes", "DescribeVolumes", pages="Volumes")
INTERFACES = _ec2("describe_network_interfaces", "DescribeNetworkInterfaces", pages="NetworkInterfaces")
GROUPS = _ec2("describe_security_groups", "DescribeSecurityGroups", pages="SecurityGroups")
KEYS = _ec2("describe_key_pairs", "DescribeKeyPairs")

# --- ending it ---------------------------------------------------------------------------------------------------

TERMINATE = _ec2("terminate_instances", "TerminateInstances")
CANCEL_SPOT_REQUESTS = _ec2("cancel_spot_instance_requests", "CancelSpotInstanceRequests")
DELETE_VOLUME = _ec2("delete_volume", "DeleteVolume")
DELETE_INTERFACE = _ec2("delete_network_interface", "DeleteNetworkInterface")
DELETE_GROUP = _ec2("delete_security_group", "DeleteSecurityGroup")
DELETE_KEY = _ec2("delete_key_pair", "DeleteKeyPair")

# --- a preemption on purpose -------------------------------------------------------------------------------------

CREATE_EXPERIMENT = Operation(
    service="fis", method="create_experiment_template", actions=("fis:CreateExperimentTemplate", "iam:PassRole")
)
START_EXPERIMENT = Operation(
    service="fis", method="start_experiment", actions=("fis:StartExperiment", "iam:CreateServiceLinkedRole")
)
DELETE_EXPERIMENT = Operation(
    service="fis", method="delete_experiment_template", actions=("fis:DeleteExperimentTemplate",)
)

OPERATIONS: tuple[Operation, ...] = tuple(value for value in globals().values() if isinstance(value, Operation))
