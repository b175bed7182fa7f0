"""``bamboo check``"""

from pathlib import Path
from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    cloud: Annotated[str, typer.Argument(help="Which cloud: aws.", metavar="CLOUD", autocompletion=completion.clouds)],
    job: Annotated[
        Path | None,
        typer.Argument(help="The job that is to run there.", metavar="JOB", autocompletion=completion.job_files),
    ] = None,
    settings: options.Settings = None,
    policy: Annotated[
        bool, typer.Option("--policy", help="Only print the policy that allows all that Bamboo does, and no more.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Look whether a cloud would do what a job needs, and rent nothing.

    Who you are, what you may, quotas, images, zones, subnets, prices: each line is ok, or a problem with what to do.
    What AWS can be asked without doing it, is asked (a dry run). Exits with 1 if there is a problem.

    \b
    Examples:
      bamboo check aws job.yaml
      bamboo check aws job.yaml --set nodes=16 --json
      bamboo check aws --policy

    See also: bamboo prices, bamboo up, docs/aws.md, docs/troubleshooting.md.
    """
    import bamboo_templates

    from bamboo_cli import output, paths
    from bamboo_cli.aws_check import Verdict, check
    from bamboo_cli.errors import CloudError, UsageError
    from bamboo_cli.job_file import load_job
    from bamboo_cli.jobs import aws_settings
    from bamboo_cli.providers.aws import AwsProvider
    from bamboo_cli.tracker_check import check_trackers
    from bamboo_cli.views import cloud as view

    if cloud != "aws":
        raise UsageError(f"there is nothing to check about the cloud {cloud}", next_step="`bamboo check aws` there is.")
    if policy:
        output.line(bamboo_templates.AWS_POLICY.read_text(encoding="utf-8").rstrip())
        return
    if job is None:
        raise UsageError("which job is it about?", next_step="Give its file: `bamboo check aws job.yaml`.")
    loaded = load_job(job, settings or ())
    if loaded.aws is None:
        raise UsageError(f"{job} is no job for AWS", next_step="Say `cloud: aws` in it, with a section `aws`.")
    check_trackers(loaded)
    provider = AwsProvider(paths.cluster_dir(loaded.name), aws_settings(loaded))
    with output.waiting("AWS to answer") as saw:
        found = []
        for finding in check(provider, loaded):
            found.append(finding)
            saw(finding.subject)
    if json:
        output.json_result(found)
    else:
        output.result(view.findings(found))
    num_problems = sum(finding.verdict is Verdict.PROBLEM for finding in found)
    if num_problems:
        raise CloudError(f"{output.plural(num_problems, 'problem')} would stand in the way of {loaded.name}")
    output.note(
        f"Nothing that can be looked at stands in the way of {loaded.name}. See what would be sent with "
        f"`bamboo up {job} --dry-run`; rent with `bamboo up {job}`."
    )
