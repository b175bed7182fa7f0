"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from bamboo_cli import completion

Job = Annotated[
    Path, typer.Argument(help="The job file.", metavar="JOB", show_default=False, autocompletion=completion.job_files)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Over the job file, e.g. --set checkpoint.every=50. Repeatable.",
        autocompletion=completion.settings,
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Name of the cluster, such as second; by default the job's.",
        autocompletion=completion.cluster_names,
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Which cluster, such as my-job, if several are up.",
        show_default=False,
        autocompletion=completion.cluster_names,
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on from the newest complete checkpoint of this run, such as my-job-3f2a1c-1; `latest`: of the newest "
        "that has one.",
        show_default=False,
        autocompletion=completion.resumable_runs,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
