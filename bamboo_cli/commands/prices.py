"""``bamboo prices``"""

from pathlib import Path
from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    job: Annotated[
        Path | None,
        typer.Argument(
            help="Take regions and types from this job.", metavar="JOB", autocompletion=completion.job_files
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="An instance type of EC2, such as g5.xlarge. Repeatable.",
            autocompletion=completion.instance_types,
        ),
    ] = None,
    regions: Annotated[
        list[str] | None,
        typer.Option(
            "--region",
            metavar="REGION",
            help="A region of AWS, such as us-west-2. Repeatable.",
            autocompletion=completion.regions,
        ),
    ] = None,
    settings: options.Settings = None,
    json: options.Json = False,
) -> None:
    """Show what spot instances of EC2 cost, zone by zone.

    The price now, its range over 7 days, the price on demand and what is saved; and how often clusters of this machine
    rented there and were preempted. It asks AWS, so it takes credentials and `pip install 'bamboo-train[aws]'`; asking
    is free and rents nothing.

    \b
    Examples:
      bamboo prices job.yaml
      bamboo prices --type g5.xlarge --type g6.xlarge --region us-west-2
      bamboo prices job.yaml --set nodes=16 --json

    See also: bamboo check, bamboo cost, docs/money.md.
    """
    import time
    from dataclasses import replace

    from bamboo_cli import output, paths
    from bamboo_cli.aws_prices import USUAL_TYPES, price_rows
    from bamboo_cli.errors import CapacityError, UsageError
    from bamboo_cli.job_file import load_job
    from bamboo_cli.jobs import aws_settings
    from bamboo_cli.providers.aws import AwsProvider
    from bamboo_cli.providers.aws_cloud.known import AwsSettings
    from bamboo_cli.providers.aws_cloud.regions import FIRST_REGION
    from bamboo_cli.views import cloud as view

    wanted = AwsSettings(regions=(FIRST_REGION,), types=USUAL_TYPES)
    if job is not None:
        loaded = load_job(job, settings or ())
        if loaded.aws is None:
            raise UsageError(f"{job} is no job for AWS", next_step="Name types with --type, or give a job for AWS.")
        wanted = aws_settings(loaded)
    wanted = replace(wanted, regions=tuple(regions or wanted.regions), types=tuple(types or wanted.types))
    rows = price_rows(AwsProvider(paths.clusters_dir(), wanted), paths.clusters_dir(), time.time())
    if json:
        output.json_result(rows)
        return
    if not rows:
        raise CapacityError(
            f"EC2 has no spot price for {', '.join(wanted.types)} in {', '.join(wanted.regions)}",
            next_step="Look in another region, or for another type.",
        )
    output.result(view.prices(rows))
