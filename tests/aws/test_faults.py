"""Faults that the double is asked for, as an SDK meets them."""

import threading
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, HTTPClientError

from tests.aws.double import AwsDouble
from tests.aws.launches import run, run_one

ATTEMPTS = 3


def test_an_error_comes_as_often_as_it_is_asked_for(aws: AwsDouble) -> None:
    aws.fault("DescribeInstances", "RequestLimitExceeded", times=2)
    for _ in range(2):
        with pytest.raises(ClientError, match="RequestLimitExceeded"):
            aws.client().describe_instances()
    assert aws.client().describe_instances()["Reservations"] == []


def test_an_sdk_tries_again_after_throttling(aws: AwsDouble) -> None:
    fault = aws.fault("Describe*", "RequestLimitExceeded", times=None)
    with pytest.raises(ClientError):
        aws.client(attempts=ATTEMPTS).describe_instances()
    assert fault.num_met == ATTEMPTS
    fault.lift()
    assert aws.client().describe_instances()["Reservations"] == []


@pytest.mark.parametrize("how", [{"code": "InternalError"}, {"drop": True}])
def test_an_answer_lost_after_the_effect_makes_no_second_instance(aws: AwsDouble, how: dict[str, Any]) -> None:
    aws.fault("RunInstances", after=True, **how)
    run_one(aws.client(attempts=ATTEMPTS), ClientToken="t1")
    assert len(aws.called("RunInstances")) == 2
    assert {call.parameters["ClientToken"] for call in aws.called("RunInstances")} == {"t1"}
    assert len(aws.alive()) == 1


def test_a_connection_closed_before_the_effect_has_none(aws: AwsDouble) -> None:
    aws.fault("RunInstances", drop=True)
    with pytest.raises((ConnectionClosedError, HTTPClientError)):
        run(aws.client())
    assert not aws.alive()


def test_a_fault_may_be_for_some_calls_only(aws: AwsDouble) -> None:
    aws.fault(
        "RunInstances", "Unsupported", times=None, when=lambda call: call.parameters["InstanceType"] == "g6.xlarge"
    )
    assert run(aws.client())
    with pytest.raises(ClientError, match="Unsupported"):
        run(aws.client(), InstanceType="g6.xlarge")


def test_a_call_waits_at_a_gate_before_or_after_its_effect(aws: AwsDouble) -> None:
    for after in (False, True):
        fault = aws.fault("RunInstances", gate=threading.Event(), after=after)
        before = len(aws.alive())
        caller = threading.Thread(target=run, args=(aws.client(),))
        caller.start()
        assert fault.met.wait(10.0)
        assert len(aws.alive()) - before == int(after)
        fault.lift()
        caller.join(10.0)
        assert len(aws.alive()) - before == 1


def test_what_the_double_does_not_know_is_an_error_and_noted(aws: AwsDouble) -> None:
    with pytest.raises(ClientError, match="InvalidAction"):
        aws.client().create_fleet(
            LaunchTemplateConfigs=[], TargetCapacitySpecification={"TotalTargetCapacity": 1}, Type="instant"
        )
    assert "CreateFleet" in aws.account.unsupported.pop()
