"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Job = Annotated[Path, typer.Argument(help="The job file.", metavar="JOB", show_default=False)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Over the job file, e.g. --set checkpoint.every=50. Repeatable."
    ),
]
ClusterName = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Cluster; by default the job's name.")
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Which cluster, if several are up.", show_default=False)
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on from the newest complete checkpoint of this run; `latest`: of the newest that has one.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
