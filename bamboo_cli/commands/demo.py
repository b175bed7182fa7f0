"""``bamboo demo``"""

from pathlib import Path
from typing import Annotated

import typer

from bamboo_cli.commands import options

STEP_LINES = 10
INTRO = """\
A GPT with 1.2 million parameters learns English prose, byte by byte, on five "machines" of a cloud made of processes:
four train a stage each, one stands by. Three of them will be taken away: one with a warning, one without, and one in
the middle of a step. Nothing is lost: every machine also keeps its neighbour's stage, and steps in.
"""


def command(
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where to keep its state and the model.", show_default="Bamboo's folder/demo"
        ),
    ] = None,
    yes: options.Yes = False,
) -> None:
    """Train a small GPT on this machine while machines are taken away.

    Takes about two minutes on two cores and no cloud account. It has a folder of its own, apart from your clusters;
    the model stays there, and nothing is left running.

    \b
    Examples:
      bamboo demo
      bamboo demo --yes --folder /tmp/bamboo-demo

    See also: bamboo init, bamboo drill, docs/local-cloud.md.
    """
    import os
    from functools import partial

    import bamboo_templates

    from bamboo_cli import clusters, output, paths, training
    from bamboo_cli.job_file import load_job, read_text
    from bamboo_cli.teardown import bring_down
    from bamboo_cli.views import summary as view
    from bamboo_cli.whole_run import run_and_give_back

    os.environ["BAMBOO_HOME"] = str((folder or paths.home() / "demo").absolute())
    job, text = load_job(bamboo_templates.DEMO_JOB), read_text(bamboo_templates.DEMO_JOB)
    cluster_dir = paths.cluster_dir(job.name)
    if clusters.is_up(cluster_dir):
        output.confirm("A demo is still up from before. End it?", yes=yes)
        bring_down(cluster_dir)
    output.line(INTRO)
    look_on = partial(training.look_on, step_lines=STEP_LINES, plain=True)
    ended = run_and_give_back(job, text, None, yes=True, look_on=look_on, detachable=False)
    ended.check()
    assert ended.run_id is not None
    found = training.summary_of(ended.path, ended.run_id)
    output.line("")
    output.result(view.summary(found))
    output.line(f"\nNothing is left running ({ended.down.detail}).")
    training.check_done(found, ended.path)
    home = os.environ["BAMBOO_HOME"]
    output.note(f"Look closer: BAMBOO_HOME={home} bamboo events, ... cost, ... logs. Your own job: bamboo init my-job.")
