"""The services beside EC2 that Bamboo asks: prices, quotas, parameters, faults on purpose."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.aws import lives, market
from tests.aws.account import Account
from tests.aws.wire import Answer, Call, answer, error

PRICING_REGIONS = ("us-east-1", "eu-central-1", "ap-south-1")
PAGE = 100
FIS_NOTICE_S = 120.0


class Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(code)
        self.code, self.message = code, message


def serve(call: Call, account: Account) -> Answer | None:
    """None: it is for moto."""
    function = _FUNCTIONS.get((call.service, call.action))
    if function is None:
        return None
    try:
        result = function(call, account)
    except Refused as refused:
        return error(call, refused.code, refused.message)
    return answer(200, "application/x-amz-json-1.1", json.dumps(result).encode())


def _get_parameter(call: Call, account: Account) -> dict[str, Any]:
    name = call.parameters["Name"]
    if name not in account.image_parameters:
        raise Refused("ParameterNotFound", f"Parameter {name} not found.")
    return {"Parameter": _parameter(name, account)}


def _get_parameters(call: Call, account: Account) -> dict[str, Any]:
    names: list[str] = call.parameters["Names"]
    return {
        "Parameters": [_parameter(name, account) for name in names if name in account.image_parameters],
        "InvalidParameters": [name for name in names if name not in account.image_parameters],
    }


def _parameter(name: str, account: Account) -> dict[str, Any]:
    value = account.image_parameters[name]
    return {"Name": name, "Type": "String", "Value": value, "Version": 1, "DataType": "text"}


def _get_service_quota(call: Call, account: Account) -> dict[str, Any]:
    code = call.parameters["QuotaCode"]
    if call.parameters["ServiceCode"] != "ec2" or code not in market.QUOTA_NAMES:
        raise Refused("NoSuchResourceException", "The request failed because the specified quota code does not exist.")
    return {"Quota": _quota(call, account, code)}


def _list_service_quotas(call: Call, account: Account) -> dict[str, Any]:
    if call.parameters["ServiceCode"] != "ec2":
        raise Refused("NoSuchResourceException", "The request failed because the specified service does not exist.")
    return {"Quotas": [_quota(call, account, code) for code in market.QUOTA_NAMES]}


def _quota(call: Call, account: Account, code: str) -> dict[str, Any]:
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaCode": code,
        "QuotaName": market.QUOTA_NAMES[code],
        "Value": account.quota(call.region, code),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def _get_products(call: Call, account: Account) -> dict[str, Any]:
    if call.region not in PRICING_REGIONS:
        account.unsupported.append(f"the Pricing API in {call.region}, where AWS has none")
    asked: Mapping[str, str] = {f["Field"]: f["Value"] for f in call.parameters.get("Filters", [])}
    products = [
        product
        for region in ([asked["regionCode"]] if "regionCode" in asked else PRICING_REGIONS)
        for kind in ([asked["instanceType"]] if "instanceType" in asked else market.types_in(region))
        if kind in market.types_in(region)
        for product in _products(kind, region)
        if all(product["product"]["attributes"].get(name) == value for name, value in asked.items())
    ]
    first = int(call.parameters.get("NextToken") or 0)
    size = int(call.parameters.get("MaxResults") or PAGE)
    more = {"NextToken": str(first + size)} if first + size < len(products) else {}
    return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(p) for p in products[first : first + size]], **more}


def _products(kind: str, region: str) -> list[dict[str, Any]]:
    """A plain one, and some of those that a careless reader takes for it."""
    return [
        _product(kind, region, system, capacity, usd)
        for system, capacity, usd in (
            ("Windows", "Used", market.on_demand_usd(kind) + 0.2),
            ("Linux", "UnusedCapacityReservation", market.on_demand_usd(kind)),
            ("Linux", "AllocatedCapacityReservation", 0.0),
            ("Linux", "Used", market.on_demand_usd(kind)),
        )
    ]


def _product(kind: str, region: str, system: str, capacity: str, usd: float) -> dict[str, Any]:
    sku = f"{kind}-{region}-{system}-{capacity}".upper()
    dimension = {"unit": "Hrs", "description": f"${usd} per On Demand {system} {kind} Instance Hour"}
    return {
        "product": {
            "productFamily": "Compute Instance",
            "sku": sku,
            "attributes": {
                "capacitystatus": capacity,
                "instanceType": kind,
                "licenseModel": "No License required",
                "location": region,
                "marketoption": "OnDemand",
                "operatingSystem": system,
                "preInstalledSw": "NA",
                "regionCode": region,
                "servicecode": "AmazonEC2",
                "tenancy": "Shared",
                "vcpu": str(market.num_vcpus(kind)),
            },
        },
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {
                f"{sku}.JRTCKXETXF": {
                    "priceDimensions": {
                        f"{sku}.JRTCKXETXF.6YS6EN2CT7": dimension | {"pricePerUnit": {"USD": f"{usd:.10f}"}}
                    },
                    "sku": sku,
                    "effectiveDate": "2026-11-01T00:00:00Z",
                }
            }
        },
    }


# --- fault injection ---


def _create_experiment_template(call: Call, account: Account) -> dict[str, Any]:
    (action,) = call.parameters["actions"].values()
    if action["actionId"] != "aws:ec2:send-spot-instance-interruptions" or not call.parameters["roleArn"]:
        raise Refused("ValidationException", f"This double injects no {action['actionId']}.")
    (target,) = action["targets"].values()
    arns = call.parameters["targets"][target]["resourceArns"]
    name = f"EXT{len(account.experiments) + 1}"
    account.experiments[name] = [arn.rpartition("/")[2] for arn in arns]
    return {"experimentTemplate": {"id": name, **call.parameters}}


def _start_experiment(call: Call, account: Account) -> dict[str, Any]:
    name = call.parameters["experimentTemplateId"]
    if name not in account.experiments:
        raise Refused("ResourceNotFoundException", f"There is no experiment template {name}.")
    for instance_id in account.experiments[name]:
        lives.announce(account, account.lives[instance_id], FIS_NOTICE_S)
    return {"experiment": {"id": f"{name}-1", "experimentTemplateId": name, "state": {"status": "initiating"}}}


def _delete_experiment_template(call: Call, account: Account) -> dict[str, Any]:
    del account.experiments[call.parameters["id"]]
    return {"experimentTemplate": {"id": call.parameters["id"]}}


_FUNCTIONS: Mapping[tuple[str, str], Callable[[Call, Account], dict[str, Any]]] = {
    ("fis", "CreateExperimentTemplate"): _create_experiment_template,
    ("fis", "StartExperiment"): _start_experiment,
    ("fis", "DeleteExperimentTemplate"): _delete_experiment_template,
    ("pricing", "GetProducts"): _get_products,
    ("servicequotas", "GetServiceQuota"): _get_service_quota,
    ("servicequotas", "ListServiceQuotas"): _list_service_quotas,
    ("ssm", "GetParameter"): _get_parameter,
    ("ssm", "GetParameters"): _get_parameters,
}
