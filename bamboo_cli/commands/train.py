"""``bamboo train``"""

from bamboo_cli.commands import options


def command(
    job: options.Job,
    settings: options.Settings = None,
    cluster: options.ClusterName = None,
    json: options.Json = False,
) -> None:
    """Train on a cluster that is up, and look on.

    Ctrl-C detaches: the run goes on, and `bamboo status --watch` shows it again. Where standard output is no terminal
    there is one line a step.

    \b
    Example:
      bamboo train job.yaml
    """
    from bamboo_cli import clusters, output, training
    from bamboo_cli.job_file import load_job, read_text
    from bamboo_cli.recipe_check import check_recipe
    from bamboo_cli.views.summary import summary as view

    loaded = load_job(job, settings or ())
    path = clusters.state_file(cluster or loaded.name)
    check_recipe(loaded)
    run_id = training.start_run(path, loaded, read_text(job))
    found = training.look_on(path, run_id)
    if json:
        output.json_line(found)
    else:
        output.result(view(found))
    output.note("The nodes are still rented, for another run or until `bamboo down`.")
    training.check_done(found, path)
