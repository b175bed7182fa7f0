"""A job on AWS is put on a schedule only with credentials that cron will have, and that AWS knows."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.aws.account import Credentials
from tests.aws.double import AwsDouble
from tests.cron.conftest import Schedule

AWS: dict[str, Any] = {
    "cloud": "aws",
    "aws": {"types": ["g5.xlarge"], "ssh_from": ["203.0.113.7/32"]},
}


@pytest.fixture(autouse=True)
def shell(aws_here: AwsDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(AWS, "checkpoint", {"url": str(tmp_path / "saved")})


def test_credentials_of_the_shell_alone_are_refused(schedule: Schedule) -> None:
    error = schedule.refusal("add", "0 2 * * *", schedule.job(**AWS))

    assert "AWS_ACCESS_KEY_ID" in error.message and "--env" in error.next_step
    assert not schedule.crontab.exists()


def test_credentials_that_are_named_are_tried_in_the_environment_of_nights(
    schedule: Schedule, aws: AwsDouble, tmp_path: Path
) -> None:
    file = tmp_path / "keys.env"
    file.write_text("".join(f"{name}={value}\n" for name, value in aws.environment.items()))
    file.chmod(0o600)
    arguments = ("add", "0 2 * * *", schedule.job(**AWS), "--env-file", file)

    aws.account.credentials = Credentials.EXPIRED
    refused = schedule.refusal(*arguments)
    assert "cron could not train this" in refused.message and "aws sso login" in refused.message
    assert json.loads(schedule.done("list", "--json").stdout) == []

    aws.account.credentials = Credentials.GOOD
    added = schedule.done(*arguments)
    assert "nothing limits what a night costs" in added.stderr
    assert [call.permission for call, _ in aws.calls] == ["sts:GetCallerIdentity"] * 2
    assert aws.remains() == []
