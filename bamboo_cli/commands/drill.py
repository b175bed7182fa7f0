"""``bamboo drill``"""

from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    job: options.Job,
    settings: options.Settings = None,
    losses: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="What is done: some of notice, kill, kill-in-step, freeze, freeze-node, cut; in order.",
            autocompletion=completion.losses,
        ),
    ] = "notice,kill,kill-in-step,freeze",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each run.", show_default="as many as the losses need")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of where the losses fall: stage, step, action.")] = 0,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Rehearse a job's losses on this machine, with a verdict.

    The job is run twice for a few steps, on a local cloud in place of the one that it names: undisturbed, and with
    nodes taken away. The table says how each loss was found, what recovery cost, and whether the weights are the same.
    Exit code 0: all as the job's protection promises; 1: not, and what. Everything is given back in the end, also on
    Ctrl-C. With --json the last line of standard output is one JSON object.

    \b
    Examples:
      bamboo drill job.yaml
      bamboo drill job.yaml --losses kill-in-step,freeze --set lease_s=5
      bamboo drill job.yaml --yes --steps 40 --seed 7 --json

    See also: bamboo verify, bamboo trace, docs/drill.md.
    """
    from bamboo_cli import clusters, output, paths
    from bamboo_cli.drills import rehearsal
    from bamboo_cli.drills.losses import parse_hows
    from bamboo_cli.errors import DrillFailedError
    from bamboo_cli.job_file import load_job
    from bamboo_cli.recipe_check import check_recipe
    from bamboo_cli.settled import settled
    from bamboo_cli.teardown import bring_down
    from bamboo_cli.views import drill as view

    loaded, hows = load_job(job, settings or ()), parse_hows(losses)
    if loaded.is_auto:
        loaded = settled(loaded, check_recipe(loaded))
    rehearsed = rehearsal.rehearsal_of(loaded, num_steps=steps, num_losses=len(hows))
    cluster_dir = paths.cluster_dir(rehearsed.name)
    if clusters.is_up(cluster_dir):
        output.confirm(f"The drill {rehearsed.name} is still up from before. End it?", yes=yes)
        bring_down(cluster_dir)
    output.line(view.intro(loaded, rehearsed, hows))
    output.confirm(f"Start {rehearsed.num_nodes} nodes on this machine?", yes=yes)
    found = rehearsal.perform(loaded, hows, num_steps=steps, seed=seed)
    if json:
        output.json_line(found)
    else:
        output.line("")
        output.result(view.drill(found))
    if not found.verdict.as_promised:
        raise DrillFailedError(
            found.verdict.sentence,
            next_step=f"`bamboo events --cluster {found.cluster}` tells the story, "
            f"`bamboo trace --cluster {found.cluster}` who did what when.",
        )
