"""``bamboo down`` more than once, at once, and killed in the middle: the next one does the rest."""

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli import clusters, keys
from bamboo_cli.errors import CredentialsError
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.teardown import bring_down
from tests.aws.account import Credentials
from tests.aws.double import AwsDouble
from tests.cli.rented import BOTH, folder, quick_environment, rented

__all__ = ["folder", "quick_environment"]


def test_two_commands_at_once_both_end_well(aws: AwsDouble, folder: Path) -> None:
    rented(folder, *BOTH)
    aws.account.shutting_down_s = 0.3
    together, raised = threading.Barrier(2), []

    def down() -> None:
        together.wait(10)
        try:
            bring_down(folder)
        except Exception as error:  # noqa: BLE001 (told below)
            raised.append(error)

    threads = [threading.Thread(target=down) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert raised == []
    assert aws.remains() == []


def test_the_next_cluster_of_that_name_keeps_its_keys_when_the_one_before_is_taken_down_once_more(
    aws: AwsDouble, folder: Path
) -> None:
    rented(folder, "us-east-1")
    held = aws.fault("DescribeKeyPairs", gate=threading.Event())
    down = threading.Thread(target=bring_down, args=(folder,))
    down.start()
    assert held.met.wait(20)
    next_one = clusters.Identity(cluster_id="big-9f8e7d", cloud="aws", regions=("us-east-1",))
    (folder / clusters.IDENTITY_FILE).write_text(json.dumps(asdict(next_one)))
    key = keys.host_key(folder, "big-9f8e7d-n1-1")
    held.lift()
    down.join()

    assert keys.known_host_key(folder, "big-9f8e7d-n1-1") == key


class Killed(BaseException):
    """Nothing that the command does can stop it."""


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """``call``: the number of the call to AWS in which the command dies; ``after``: whether it had its effect."""
    how, calls, items = {"call": -1, "after": 0, "made": 0}, Calls.call, Calls.items

    def dying(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            number, how["made"] = how["made"], how["made"] + 1
            if number == how["call"] and not how["after"]:
                raise Killed
            answer = function(*arguments, **named)
            if number == how["call"]:
                raise Killed
            return answer

        return call

    monkeypatch.setattr(Calls, "call", dying(calls))
    monkeypatch.setattr(Calls, "items", dying(items))
    yield how


@pytest.mark.parametrize("after", [False, True])
def test_a_command_that_is_killed_in_any_call_is_made_good_by_the_next(
    aws: AwsDouble, folder: Path, killed_at: dict[str, int], after: bool
) -> None:
    """Each gets one call further than the one before, as long as there is something to do."""
    rented(folder, "us-east-1")
    for number in itertools.count():
        killed_at |= {"call": number, "after": int(after), "made": 0}
        try:
            bring_down(folder)
        except Killed:
            continue
        break
    assert number > 10
    assert aws.remains() == []


def test_credentials_that_run_out_in_the_middle_are_told_and_the_next_command_goes_on(
    aws: AwsDouble, folder: Path
) -> None:
    rented(folder, "us-east-1")
    held = aws.fault("TerminateInstances", gate=threading.Event(), after=True)

    def expire() -> None:
        held.met.wait(20)
        aws.account.credentials = Credentials.EXPIRED
        held.lift()

    expiring = threading.Thread(target=expire)
    expiring.start()
    with pytest.raises(CredentialsError) as raised:
        bring_down(folder)
    expiring.join()

    assert "log in again" in raised.value.next_step
    assert (folder / clusters.IDENTITY_FILE).exists() and aws.remains() != []
    aws.account.credentials = Credentials.GOOD
    bring_down(folder)
    assert aws.remains() == []
