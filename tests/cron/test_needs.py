"""Credentials are named, or the entry is refused."""

from pathlib import Path

import pytest

from bamboo_cli.config import JobConfig
from bamboo_cli.cron import needs
from bamboo_cli.cron.environment import read_file
from bamboo_cli.errors import UsageError

AWS = {"cloud": "aws", "aws": {"types": ["g5.xlarge"]}}
KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_CA_BUNDLE": "/ca", "HOME": "/root"}


def job(**changes: object) -> JobConfig:
    basis = {"name": "tiny", "steps": 10, "global_batch_size": 8, "microbatch_size": 2}
    return JobConfig.model_validate(basis | changes)


def test_a_local_job_needs_none() -> None:
    needs.check(job(), KEYS, (), ())


@pytest.mark.parametrize("changes", [AWS, {"checkpoint": {"url": "s3://bucket/runs"}}])
def test_keys_of_the_shell_that_nobody_named_are_refused_by_name_and_never_shown(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError) as raised:
        needs.check(job(**changes), KEYS, (), ())

    assert "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, which" in raised.value.message
    assert "--env AWS_ACCESS_KEY_ID" in raised.value.next_step and "--env-file" in raised.value.next_step
    assert "AKIA" not in str(raised.value) and "secret" not in str(raised.value)


def test_keys_that_were_named_are_taken() -> None:
    needs.check(job(**AWS), KEYS, KEYS, KEYS)


def test_a_profile_that_the_job_names_stands_above_keys_but_not_above_where_aws_is() -> None:
    with_profile = job(cloud="aws", aws={"types": ["g5.xlarge"], "profile": "nights"})
    needs.check(with_profile, KEYS, (), ())

    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL"):
        needs.check(with_profile, KEYS | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, (), ())


def test_another_store_has_other_variables() -> None:
    on_google = job(checkpoint={"url": "gs://bucket/runs"})

    assert needs.credentials_of(on_google, KEYS | {"GOOGLE_APPLICATION_CREDENTIALS": "x"}) == {
        "GOOGLE_APPLICATION_CREDENTIALS"
    }


def test_a_session_token_is_refused_since_it_runs_out() -> None:
    with pytest.raises(UsageError, match="temporary credentials"):
        needs.check(job(**AWS), {}, {"AWS_SESSION_TOKEN"}, {"AWS_SESSION_TOKEN"})


def test_keys_of_the_job_and_proxies_that_stay_behind_are_named() -> None:
    shell = {
        "BAMBOO_STEPS": "5",
        "BAMBOO_CHECKPOINT__EVERY": "2",
        "https_proxy": "x",
        "TERM": "xterm",
        "BAMBOO_HOME": "/",
    }

    assert needs.left_behind(shell, {"BAMBOO_STEPS"}) == ("BAMBOO_CHECKPOINT__EVERY", "https_proxy")


def test_a_file_of_variables_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "keys.env"
    path.write_text("# keys\nexport A=1\nB='two words'\nC=$A\n\nD=\n")
    path.chmod(0o600)

    assert read_file(path) == {"A": "1", "B": "two words", "C": "$A", "D": ""}


def test_a_file_of_variables_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.env"
    path.write_text("A=1\n")
    path.chmod(0o640)

    with pytest.raises(UsageError, match="others than you can read") as raised:
        read_file(path)

    assert "chmod 600" in raised.value.next_step
