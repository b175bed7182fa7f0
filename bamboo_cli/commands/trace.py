"""``bamboo trace``"""

from pathlib import Path
from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    run: Annotated[
        str | None,
        typer.Argument(help="Which run; by default the newest.", metavar="RUN", autocompletion=completion.runs),
    ] = None,
    cluster: options.Cluster = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Only this step; with its neighbours where a failover lies in it.")
    ] = None,
    svg: Annotated[
        bool,
        typer.Option(
            "--svg",
            help="A picture of one step instead; by default the newest with a failover, else the newest.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Or a folder. By default RUN.trace.json or RUN-stepN.svg in the current one; its path is printed.",
        ),
    ] = None,
) -> None:
    """Write who did what when, for a trace viewer.

    Every action of the recorded steps, the waits between them, transfers, losses and failovers. Open the file in
    https://ui.perfetto.dev or chrome://tracing. Works while the run is on, after it, and with the coordinator dead;
    of runs of earlier clusters too.

    \b
    Examples:
      bamboo trace
      bamboo trace --step 12 --svg
      bamboo trace my-job-3f2a1c-1 --cluster my-job --output run.json
      bamboo trace --svg -o pictures/

    See also: bamboo events, bamboo verify, docs/trace.md.
    """
    from bamboo_cli import output as out
    from bamboo_cli import records
    from bamboo_cli.tracing.files import ranges, write_picture, write_trace

    write = write_picture if svg else write_trace
    path = records.state_file(cluster) if run is None else records.find_run(run, cluster)
    made = write(path, run, step, output)
    out.note(f"run {made.run_id}: step {ranges(made.steps)} of {made.num_workers} workers")
    if made.hint:
        out.note(made.hint)
    if not svg:
        out.note("open it in https://ui.perfetto.dev (which reads it in the browser and uploads nothing)")
    out.line(str(made.path))
