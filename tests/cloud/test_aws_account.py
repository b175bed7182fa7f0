"""Against a real account, read and dry runs only: `BAMBOO_TEST_AWS=1 python -m pytest -m account tests/cloud`.

Credentials and `AWS_REGION` come from the environment. Nothing is rented; what is looked at costs nothing.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bamboo_cli.main import app

pytestmark = [
    pytest.mark.account,
    pytest.mark.skipif(not os.environ.get("BAMBOO_TEST_AWS"), reason="set BAMBOO_TEST_AWS=1, with credentials"),
]
REGION = os.environ.get("AWS_REGION", "us-east-1")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "home"))
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: account-test\ncloud: aws\nsteps: 1\nglobal_batch_size: 2\nmicrobatch_size: 1\n"
        f"checkpoint: {{url: s3://unused/runs}}\naws: {{regions: [{REGION}], types: [g4dn.xlarge, t3.medium], "
        "ssh_from: [203.0.113.7/32]}\n"
    )
    return str(path)


def asked(*arguments: str) -> Any:
    return json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)


def test_the_account_knows_us_and_has_images_zones_and_prices(job: str) -> None:
    found = {finding["subject"]: finding for finding in asked("check", "aws", job)}

    for subject in (
        "identity",
        f"{REGION} subnets",
        f"{REGION} t3.medium",
        f"{REGION} t3.medium image",
        f"{REGION} price",
    ):
        assert found[subject]["verdict"] == "ok", found[subject]


def test_ec2_would_launch_what_is_asked(job: str) -> None:
    requests = asked("up", job, "--dry-run", "--set", "aws.types=[t3.medium]")["requests"]

    assert all(request["accepted"] for request in requests), requests


def test_prices_are_those_of_a_market(job: str) -> None:
    rows = asked("prices", job)

    assert len({row["zone"] for row in rows}) > 1
    assert all(0.0 < row["low_usd_per_hour"] <= row["high_usd_per_hour"] for row in rows)
