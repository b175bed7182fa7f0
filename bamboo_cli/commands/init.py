"""``bamboo init``"""

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(help="Where to put them; made if need be.", metavar="FOLDER")] = Path("."),
    minimal: Annotated[
        bool, typer.Option("--minimal", help="Only a job file of four lines, for the gpt2 recipe.")
    ] = False,
) -> None:
    """Write a commented job file and a recipe to start from.

    \b
    Example:
      bamboo init my-job
      bamboo plan my-job/job.yaml
      bamboo run my-job/job.yaml
    """
    import shutil

    import bamboo_templates

    from bamboo_cli import output
    from bamboo_cli.errors import BambooError, UsageError

    sources = {"job.yaml": bamboo_templates.MINIMAL_JOB if minimal else bamboo_templates.JOB}
    if not minimal:
        sources["recipe.py"] = bamboo_templates.RECIPE
    there = [folder / name for name in sources if (folder / name).exists()]
    if there:
        raise UsageError(
            f"{' and '.join(map(str, there))} {'is' if len(there) == 1 else 'are'} already there; nothing was written",
            next_step="Name another folder.",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in sources.items():
            shutil.copyfile(source, folder / name)
            output.line(f"wrote {folder / name}")
    except OSError as error:
        raise BambooError(f"cannot write to {folder}: {error}") from error
    output.note(
        f"Look at the plan with `bamboo plan {folder / 'job.yaml'}`; train with `bamboo run {folder / 'job.yaml'}`."
    )
