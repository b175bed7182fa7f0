"""The metadata endpoint of an instance, as an EC2 program sees it."""

import http.client
import json
from collections.abc import Iterator

import pytest

from bamboo_cli.providers.base import Instance
from bamboo_cli.providers.local_cloud.metadata import MetadataEndpoint
from bamboo_cli.providers.local_cloud.model import Rented
from tests.providers.test_local_model import rented
from tests.waiting import wait_until

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"


class Metadata:
    """The endpoint of ``self.instance``, which a test may change."""

    def __init__(self, instance: Rented) -> None:
        self.instance = instance
        self.endpoint = MetadataEndpoint(address="127.0.0.1", port=0, view=lambda: self.instance)

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.endpoint.port, timeout=10)
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        return response.status, body

    def token(self, ttl: str = "60") -> str:
        status, token = self.ask("PUT", "/latest/api/token", **{TTL: ttl})
        assert status == 200
        return token

    def get(self, path: str, token: str | None = None) -> tuple[int, str]:
        return self.ask("GET", path, X_aws_ec2_metadata_token=token or self.token())


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    metadata = Metadata(rented())
    yield metadata
    metadata.endpoint.close()


def test_nothing_is_told_without_a_valid_token(metadata: Metadata) -> None:
    assert metadata.ask("GET", ACTION)[0] == 401
    assert metadata.get(ACTION, token="made-up")[0] == 401


def test_a_token_expires(metadata: Metadata) -> None:
    token = metadata.token(ttl="1")
    assert metadata.get(ACTION, token)[0] == 404
    wait_until(lambda: metadata.get(ACTION, token)[0] == 401, "the token to expire")


@pytest.mark.parametrize("ttl", ["", "0", "21601", "-1", "1.5", "soon", "\u00b2"])
def test_a_bad_time_to_live_is_a_bad_request(metadata: Metadata, ttl: str) -> None:
    assert metadata.ask("PUT", "/latest/api/token", **{TTL: ttl})[0] == 400


def test_a_token_is_not_given_through_a_proxy(metadata: Metadata) -> None:
    assert metadata.ask("PUT", "/latest/api/token", X_Forwarded_For="10.0.0.1", **{TTL: "60"})[0] == 403


def test_the_facts_of_the_instance_are_told(metadata: Metadata) -> None:
    instance: Instance = metadata.instance.public()
    for key, value in {
        "instance-id": instance.instance_id,
        "instance-type": instance.instance_type,
        "instance-life-cycle": "spot",
        "placement/availability-zone": instance.zone,
        "local-ipv4": instance.address,
    }.items():
        assert metadata.get(f"/latest/meta-data/{key}") == (200, value)
    assert metadata.get("/latest/meta-data/public-keys")[0] == 404
    assert metadata.get("/")[0] == 404


def test_a_notice_is_there_once_the_instance_is_preempted_with_one(metadata: Metadata) -> None:
    assert metadata.get(ACTION)[0] == 404
    assert metadata.get(REBALANCE)[0] == 404
    metadata.instance = metadata.instance.noticed(notice_s=120.0, now=1_796_000_000.7)
    status, body = metadata.get(ACTION)
    assert (status, json.loads(body)) == (200, {"action": "terminate", "time": "2026-11-30T00:55:20Z"})
    status, body = metadata.get(REBALANCE)
    assert (status, json.loads(body)) == (200, {"noticeTime": "2026-11-30T00:53:20Z"})


def test_neither_a_termination_nor_a_preemption_at_once_is_announced(metadata: Metadata) -> None:
    metadata.instance = rented().unwanted(100.0)
    assert metadata.get(ACTION)[0] == 404
    metadata.instance = rented().noticed(notice_s=None, now=100.0)
    assert metadata.get(ACTION)[0] == 404
