"""This machine's own address, and the order in which zones are asked."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

import pytest

from bamboo_cli.config import JobConfig
from bamboo_cli.config_aws import AwsConfig
from bamboo_cli.errors import CloudError
from bamboo_cli.market import MarketZone, ranked, settle, zones_on_offer
from bamboo_cli.providers.aws_cloud import network
from bamboo_cli.providers.base import Offer


class Checkip(BaseHTTPRequestHandler):
    says = "203.0.113.7\n"

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.says.encode())

    def log_message(self, format: str, *arguments: object) -> None: ...


@pytest.fixture
def checkip(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Checkip]]:
    with ThreadingTCPServer(("127.0.0.1", 0), Checkip) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(network, "OWN_ADDRESS_URL", f"http://127.0.0.1:{server.server_address[1]}")
        yield Checkip
        server.shutdown()
        thread.join()


def test_the_own_address_is_what_the_world_sees(checkip: type[Checkip], monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.own_block() == "203.0.113.7/32"
    monkeypatch.setattr(checkip, "says", "2001:db8::7\n")
    assert network.own_block() == "2001:db8::7/128"


def test_an_answer_that_is_no_address_is_not_let_in(checkip: type[Checkip], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkip, "says", "<html>log in to this hotel's network</html>")
    with pytest.raises(CloudError, match="does not tell") as raised:
        network.own_block()
    assert "aws.ssh_from" in raised.value.next_step


def test_without_an_answer_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "OWN_ADDRESS_URL", "http://127.0.0.1:9")
    with pytest.raises(CloudError) as raised:
        network.own_block()
    assert "aws.ssh_from" in raised.value.next_step


# --- zones -------------------------------------------------------------------------------------------------------


def zone(name: str, spot: float, kind: str = "g5.xlarge") -> MarketZone:
    return MarketZone(
        name=name, instance_type=kind, spot_usd_per_hour=spot, on_demand_usd_per_hour=1.0, price_source="live"
    )


def test_zones_are_asked_by_region_then_likelihood_then_price() -> None:
    market = (zone("us-west-2a", 0.1), zone("us-east-1a", 0.3), zone("us-east-1b", 0.2), zone("us-east-1c", 0.4))

    order = [found.name for found in ranked(market, {"us-east-1c": 9, "us-east-1a": 3}, ("us-east-1", "us-west-2"))]

    assert order == ["us-east-1c", "us-east-1a", "us-east-1b", "us-west-2a"]


def test_a_zone_counts_with_the_first_type_that_it_has() -> None:
    offers = [
        Offer(
            instance_type=kind,
            zone=name,
            spot_usd_per_hour=0.3,
            on_demand_usd_per_hour=1.0,
            price_source="live",
            is_spot=spot,
        )
        for name, kind, spot in (("a", "g5", True), ("a", "g6", True), ("b", "g6", True), ("c", "g5", False))
    ]

    assert [(found.name, found.instance_type) for found in zones_on_offer(offers)] == [("a", "g5"), ("b", "g6")]


def test_a_job_is_settled_on_its_zones_and_keeps_everything_else() -> None:
    job = JobConfig(
        name="big", cloud="aws", steps=1, global_batch_size=2, microbatch_size=1, aws=AwsConfig(types=("g5.xlarge",))
    )

    settled = settle(job, (zone("us-east-1c", 0.4), zone("us-east-1a", 0.3)))

    assert settled.on_aws.zones == ("us-east-1c", "us-east-1a")
    stored = JobConfig.model_validate(settled.model_dump(mode="json", exclude_unset=True))
    assert stored == settled
