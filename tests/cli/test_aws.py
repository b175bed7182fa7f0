"""What the commands say about AWS before anything is rented, and that all that they call is in the policy."""

import fnmatch
import json
from pathlib import Path
from typing import Any

import bamboo_templates
import pytest
from bamboo_trainer import storage
from typer.testing import Result

from bamboo_cli.providers.aws_cloud import catalogue
from bamboo_cli.providers.aws_cloud.operations import OPERATIONS
from tests.aws.account import Credentials
from tests.aws.double import AwsDouble
from tests.cli.aws_job import bamboo, environment, job, refusal

__all__ = ["environment", "job"]

# --- check -------------------------------------------------------------------------------------------------------


def findings(result: Result) -> dict[str, Any]:
    return {finding["subject"]: finding for finding in json.loads(result.stdout)}


def test_all_that_a_job_needs_is_looked_at_and_nothing_is_made(aws: AwsDouble, job: str) -> None:
    result = bamboo("check", "aws", job, "--json", "--set", "aws.instance_profile=bamboo-node")

    assert result.exit_code == 0
    found = findings(result)
    assert {subject for subject, finding in found.items() if finding["verdict"] != "ok"} == {"ending things"}
    assert found["identity"]["text"].startswith("arn:aws:")
    assert "16 are needed" in found["us-east-1 g5.xlarge quota"]["text"]
    assert "us-east-1a" in found["us-east-1 g5.xlarge"]["text"]
    assert found["us-east-1 instance"]["text"] == "ec2:RunInstances would be done"
    assert "Nothing that can be looked at stands in the way of big" in result.stderr
    assert f"bamboo up {job} --dry-run" in result.stderr
    assert aws.remains() == []


def test_what_stands_in_the_way_is_told_with_what_to_do(aws: AwsDouble, job: str) -> None:
    aws.account.quotas[("us-east-1", "L-3819A6DF")] = 8.0
    aws.account.allowed = ("ec2:Describe*", "servicequotas:*", "ssm:*", "ec2:ImportKeyPair", "ec2:CreateTags")

    result = bamboo("check", "aws", job, "--json")

    problems = {subject: f for subject, f in findings(result).items() if f["verdict"] == "problem"}
    assert set(problems) == {
        "us-east-1 g5.xlarge quota",
        "us-east-1 g6.xlarge quota",
        "us-east-1 group",
        "us-east-1 instance",
    }
    step = problems["us-east-1 g5.xlarge quota"]["next_step"]
    assert "--quota-code L-3819A6DF --region us-east-1 --desired-value 20" in step  # a fifth node replaces one of four
    assert "does not permit ec2:RunInstances" in problems["us-east-1 instance"]["text"]
    assert "4 problems" in refusal(result).message


def test_credentials_that_have_run_out_are_all_that_is_told(aws: AwsDouble, job: str) -> None:
    aws.account.credentials = Credentials.EXPIRED

    result = bamboo("check", "aws", job)

    assert len(result.stdout.splitlines()) == 2
    assert "problem" in result.stdout and "aws sso login" in result.stdout


def test_what_checkpoints_lack_is_among_it(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def checkpoints(*settings: str) -> Any:
        words = [word for setting in settings for word in ("--set", setting)]
        return findings(bamboo("check", "aws", job, "--json", *words))["checkpoints"]

    assert checkpoints()["verdict"] == "not known" and "aws.instance_profile" in checkpoints()["text"]
    assert checkpoints("aws.instance_profile=bamboo-node")["verdict"] == "ok"
    assert "each node has one of its own" in checkpoints("checkpoint.url=/data/runs")["text"]

    monkeypatch.setattr(storage, "missing_package", lambda url: "s3fs")
    assert checkpoints()["verdict"] == "problem" and checkpoints()["next_step"] == "Install it with: pip install s3fs"


# --- the policy --------------------------------------------------------------------------------------------------


def statements() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(bamboo_templates.AWS_POLICY.read_text(encoding="utf-8"))["Statement"]
    return found


def policy_actions() -> list[str]:
    return [action for s in statements() for action in ([s["Action"]] if isinstance(s["Action"], str) else s["Action"])]


def test_the_policy_allows_what_is_called_and_no_more() -> None:
    called = {action for operation in OPERATIONS for action in operation.actions}

    assert sorted(policy_actions()) == sorted(called)


def test_nothing_is_called_beside_the_table_of_operations() -> None:
    """boto3 is imported by one file, and its clients are made there."""
    package = Path(bamboo_templates.__file__).parents[2] / "bamboo_cli"
    users = [path.name for path in package.rglob("*.py") if "boto" in path.read_text(encoding="utf-8")]

    assert sorted(users) == ["calls.py", "operations.py"]
    assert all("*" not in action for action in policy_actions())


def test_only_roles_of_ours_may_be_handed_on_and_only_to_nodes_and_fault_injection() -> None:
    """Whoever may give any role to an instance may do all that any role may."""
    (passed,) = [s for s in statements() if "iam:PassRole" in s["Action"]]

    assert passed["Resource"] == "arn:aws:iam::*:role/bamboo-*"
    assert passed["Condition"]["StringEquals"]["iam:PassedToService"] == ["ec2.amazonaws.com", "fis.amazonaws.com"]


def test_the_policy_is_enough_for_a_whole_life(aws: AwsDouble, job: str, tmp_path: Path) -> None:
    aws.account.allowed = tuple(policy_actions())
    assert bamboo("check", "aws", job).exit_code == 0
    assert bamboo("prices", job).exit_code == 0
    assert bamboo("up", job, "--dry-run").exit_code == 0

    refused = [
        call.permission for call, code in aws.calls if code in ("UnauthorizedOperation", "AccessDeniedException")
    ]

    assert refused == []
    assert all(any(fnmatch.fnmatch(call.permission, a) for a in policy_actions()) for call, _ in aws.calls)


def test_the_policy_is_printed_as_it_is() -> None:
    assert json.loads(bamboo("check", "aws", "--policy").stdout)["Version"] == "2012-10-17"


# --- prices ------------------------------------------------------------------------------------------------------


def test_prices_tell_now_the_week_and_what_is_saved(aws: AwsDouble, job: str) -> None:
    result = bamboo("prices", job, "--json")

    rows = json.loads(result.stdout)
    assert {row["instance_type"] for row in rows} == {"g5.xlarge", "g6.xlarge"}
    for row in rows:
        assert row["low_usd_per_hour"] <= row["spot_usd_per_hour"] <= row["high_usd_per_hour"]
        assert row["low_usd_per_hour"] < row["high_usd_per_hour"]
    first = rows[0]
    assert (first["gpu"], first["memory_gb"], first["on_demand_usd_per_hour"]) == (
        "1 × NVIDIA A10G, 22 GB",
        16.0,
        1.006,
    )


def test_prices_are_a_table_a_row_a_zone(job: str) -> None:
    result = bamboo("prices", "--type", "g5.xlarge", "--region", "us-west-2")

    lines = result.stdout.splitlines()
    header = " ".join(lines[0].split())
    assert header == "type GPU zone memory spot now 7 days low high on demand saving seen here"
    assert all(line.startswith("g5.xlarge") for line in lines[1:-1]) and "us-west-2a" in result.stdout
    assert lines[-1] == "USD per hour; spot prices are live, on demand: live"


def test_a_price_on_demand_that_aws_did_not_tell_is_called_an_estimate_with_its_date(aws: AwsDouble, job: str) -> None:
    """An own list of a day long past is no price, and what is saved against it no fact."""
    aws.account.allowed = ("ec2:*", "ssm:*", "servicequotas:*", "sts:*")
    called = f"an estimate of {catalogue.DATE}"

    prices, dry_run = bamboo("prices", job), bamboo("up", job, "--dry-run")

    assert prices.stdout.splitlines()[-1] == f"USD per hour; spot prices are live, on demand: ~ {called}"
    assert all("~$" in line for line in prices.stdout.splitlines()[1:-1])
    assert f"prices: live, on demand: {called}" in dry_run.stdout


def test_a_type_that_nobody_sells_has_no_price(job: str) -> None:
    result = bamboo("prices", job, "--set", "aws.zones=[us-east-1e]")

    assert "no spot price for g5.xlarge, g6.xlarge in us-east-1" in refusal(result).message


# --- up --dry-run ------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_every_request_and_makes_nothing(aws: AwsDouble, job: str, tmp_path: Path) -> None:
    result = bamboo("up", job, "--dry-run", "--json")

    assert result.exit_code == 0
    rehearsed = json.loads(result.stdout)
    actions = [asked["action"] for asked in rehearsed["requests"]]
    assert actions == [
        "CreateSecurityGroup",
        "AuthorizeSecurityGroupIngress",
        "AuthorizeSecurityGroupIngress",
        "ImportKeyPair",
        "RunInstances",
    ]
    request = rehearsed["requests"][-1]["request"]
    assert request["InstanceMarketOptions"]["SpotOptions"]["SpotInstanceType"] == "one-time"
    assert "PRIVATE KEY" not in result.stdout
    assert aws.remains() == []
    assert not (tmp_path / "home").exists()


def test_a_dry_run_that_ec2_would_refuse_fails_with_its_reason(aws: AwsDouble, job: str) -> None:
    aws.account.allowed = ("ec2:Describe*", "ec2:Create*", "ec2:ImportKeyPair", "ssm:*", "pricing:*")

    result = bamboo("up", job, "--dry-run")

    assert "does not permit ec2:RunInstances" in refusal(result).message


def test_a_dry_run_ends_with_what_it_all_comes_to(aws: AwsDouble, job: str) -> None:
    """Of 200 lines the last ones are seen; and EC2's dry run does not look at quotas."""
    fine = bamboo("up", job, "--dry-run", "--set", "aws.instance_profile=bamboo-node").stderr
    aws.account.quotas[("us-east-1", "L-3819A6DF")] = 8.0
    short = bamboo("up", job, "--dry-run", "--set", "checkpoint.url=/data/runs").stderr

    assert fine.startswith("EC2 takes the requests: 4 nodes for about $")
    assert fine.endswith("Nothing was rented.\n")
    assert "each node has one of its own" in short
    assert "us-east-1 has a quota for 2 of 4 nodes (All G and VT Spot Instance Requests)" in short
    assert "--desired-value 20" in short


def test_a_dry_run_is_for_aws(tmp_path: Path) -> None:
    path = tmp_path / "local.yaml"
    path.write_text("name: tiny\nsteps: 10\nglobal_batch_size: 8\nmicrobatch_size: 2\n")

    assert "the job's cloud is local" in refusal(bamboo("up", str(path), "--dry-run")).message


def test_a_profile_of_the_nodes_is_asked_for_and_refused_before_anything_is_rented(aws: AwsDouble, job: str) -> None:
    known = bamboo("up", job, "--dry-run", "--json", "--set", "aws.instance_profile=bamboo-node")
    unknown = bamboo("up", job, "--dry-run", "--set", "aws.instance_profile=nobody")

    asked = json.loads(known.stdout)["requests"][-1]["request"]
    assert asked["IamInstanceProfile"] == {"Name": "bamboo-node"}
    assert "Invalid IAM Instance Profile name" in refusal(unknown).message


def test_a_plan_tells_that_nodes_lack_credentials_for_their_checkpoints(job: str) -> None:
    from bamboo_cli.job_file import load_job
    from bamboo_cli.preview import NO_CREDENTIALS, preview

    without, with_one = load_job(Path(job)), load_job(Path(job), ("aws.instance_profile=bamboo-node",))

    assert NO_CREDENTIALS in preview(without).warnings
    assert NO_CREDENTIALS not in preview(with_one).warnings


# --- plan --------------------------------------------------------------------------------------------------------


def test_a_plan_is_made_without_an_account_too(aws: AwsDouble, job: str) -> None:
    from bamboo_cli.job_file import load_job
    from bamboo_cli.market import market_or_assumed
    from bamboo_cli.preview import preview

    loaded = load_job(Path(job))
    asked, why = market_or_assumed(loaded)
    assert not why and preview(loaded, market=asked).spot_usd_per_hour < 4.0
    aws.account.credentials = Credentials.WRONG

    assumed, why = market_or_assumed(loaded)

    assert "AuthFailure" in why
    assert preview(loaded, market=assumed).spot_usd_per_hour == pytest.approx(4 * 1.006)
