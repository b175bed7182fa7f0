"""``bamboo init --cloud aws``: what it writes passes the check as it is, the cheap variant in its comments too."""

from pathlib import Path

import pytest
from bamboo_trainer import storage

from bamboo_cli.job_file import load_job
from tests.cli.aws_job import bamboo, environment, refusal

__all__ = ["environment"]


@pytest.fixture(autouse=True)
def as_if_on_the_net(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With s3fs, and an address that AWS sees."""
    monkeypatch.setattr(storage, "missing_package", lambda url: None)
    monkeypatch.setattr("bamboo_cli.providers.aws_cloud.network.own_block", lambda: "203.0.113.7/32")


def test_the_job_that_is_written_passes_the_check(tmp_path: Path) -> None:
    written = bamboo("init", str(tmp_path / "first"), "--cloud", "aws")
    job = tmp_path / "first" / "job.yaml"

    assert "checkpoint.url" in written.stderr and f"bamboo check aws {job}" in written.stderr
    assert (load_job(job).name, load_job(job).cloud) == ("first", "aws")
    assert bamboo("check", "aws", str(job)).exit_code == 0


def test_so_does_the_first_try_for_cents_in_its_comments(tmp_path: Path) -> None:
    bamboo("init", str(tmp_path / "first"), "--cloud", "aws")
    job = tmp_path / "first" / "job.yaml"
    lines = [line for line in job.read_text().splitlines() if not line.strip().startswith("types:")]
    cheap = ("types:", "torch_index_url:", "volume_gb:")
    job.write_text("\n".join(line.replace("  # ", "  ") if any(c in line for c in cheap) else line for line in lines))

    assert load_job(job).on_aws.types == ("t3.large", "t3a.large")
    assert load_job(job).on_aws.volume_gb == 20
    assert bamboo("check", "aws", str(job)).exit_code == 0


def test_what_is_minimal_is_local(tmp_path: Path) -> None:
    assert "for the local cloud" in refusal(bamboo("init", str(tmp_path), "--minimal", "--cloud", "aws")).message
