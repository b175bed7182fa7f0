"""``bamboo plan``"""

from bamboo_cli.commands import options


def command(job: options.Job, settings: options.Settings = None, json: options.Json = False) -> None:
    """Show what a job would look like, and rent nothing.

    Which node runs and shadows what, one step as a grid, the share of bubbles, the price per hour; what each protection
    costs in time and memory and what it survives; what `auto` would choose and why. Where torch is installed the recipe
    is tried as well, which tells its memory.

    \b
    Examples:
      bamboo plan job.yaml
      bamboo plan job.yaml --set stages=4 --set redundancy=auto
      bamboo plan job.yaml --json

    See also: bamboo drill, bamboo prices, docs/planner.md, docs/job-file.md.
    """
    from bamboo_cli import output
    from bamboo_cli.job_file import load_job
    from bamboo_cli.market import market_or_assumed
    from bamboo_cli.preview import preview
    from bamboo_cli.recipe_check import check_recipe, missing_packages
    from bamboo_cli.storage_check import check_storage
    from bamboo_cli.views import plan as view

    loaded = load_job(job, settings or ())
    check_storage(loaded, from_afar=False)
    missing = missing_packages()
    if missing:
        output.note(f"the recipe was not tried: {', '.join(missing)} is not installed")
    model = None if missing else check_recipe(loaded)
    market, unasked = market_or_assumed(loaded)
    if unasked:
        output.note(f"zones and prices are assumed: {unasked}")
    found = preview(loaded, model, market)
    if json:
        output.json_result(found)
    else:
        output.result(view.plan(found), one_line_a_row=True)
