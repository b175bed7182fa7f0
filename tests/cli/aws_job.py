"""A job for AWS, and the commands that look at it, in this process."""

from pathlib import Path

import pytest
from bamboo_trainer import storage
from typer.testing import CliRunner, Result

from bamboo_cli.errors import BambooError
from bamboo_cli.main import app
from tests.aws.double import AwsDouble

JOB = """
name: big
cloud: aws
recipe: gpt2
steps: 10
global_batch_size: 8
microbatch_size: 2
stages: 4
checkpoint: {url: s3://bucket/runs}
aws:
  types: [g5.xlarge, g6.xlarge]
  ssh_from: [203.0.113.7/32]
"""


@pytest.fixture(autouse=True)
def environment(aws_here: AwsDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(storage, "missing_package", lambda url: None)  # as if s3fs were installed


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


def bamboo(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def refusal(result: Result) -> BambooError:
    assert isinstance(result.exception, BambooError), result.exception
    return result.exception
