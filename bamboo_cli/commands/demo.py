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
        Path | None, typer.Option(help="Where to keep its state and the model.", show_default="Bamboo's folder/demo")
    ] = None,
    yes: options.Yes = False,
) -> None:
    """Train a small GPT on this machine while machines are taken away.

    Takes about two minutes on two cores and no cloud account. It has a folder of its own, apart from your clusters;
    the model stays there, and nothing is left running.

    \b
    Example:
      bamboo demo --folder /tmp/bamboo-demo
    """
    import os

    import bamboo_templates

    from bamboo_cli import clusters, output, paths, training
    from bamboo_cli.coordinator.store import state_path
    from bamboo_cli.errors import SignalledError
    from bamboo_cli.job_file import load_job, read_text
    from bamboo_cli.renting import rent
    from bamboo_cli.signals import Terminated, terminable
    from bamboo_cli.teardown import bring_down, give_back
    from bamboo_cli.views import summary as view

    os.environ["BAMBOO_HOME"] = str((folder or paths.home() / "demo").absolute())
    job = load_job(bamboo_templates.DEMO_JOB)
    cluster_dir = paths.cluster_dir(job.name)
    if clusters.is_up(cluster_dir):
        output.confirm("A demo is still up from before. End it?", yes=yes)
        bring_down(cluster_dir)
    output.line(INTRO)
    text = read_text(bamboo_templates.DEMO_JOB)
    path = state_path(cluster_dir)
    with terminable():
        try:
            rent(job, text, None, yes=True, new=True)
            run_id = training.start_run(path, job, text)
            training.look_on(path, run_id, step_lines=STEP_LINES, plain=True)
        except (KeyboardInterrupt, SignalledError, Terminated) as signalled:
            if not clusters.is_up(cluster_dir):
                raise
            down = give_back(cluster_dir)
            raise SignalledError(
                f"interrupted; nothing is left running ({down.detail})",
                exit_code=getattr(signalled, "exit_code", 130),
            ) from None
        except BaseException:
            if clusters.is_up(cluster_dir):
                give_back(cluster_dir)
            raise
        down = give_back(cluster_dir)
    found = training.summary_of(path, run_id)
    output.line("")
    output.result(view.summary(found))
    output.line(f"\nNothing is left running ({down.detail}).")
    training.check_done(found, path)
    home = os.environ["BAMBOO_HOME"]
    output.note(f"Look closer: BAMBOO_HOME={home} bamboo events, ... cost, ... logs. Your own job: bamboo init my-job.")
