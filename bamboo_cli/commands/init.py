"""``bamboo init``"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Cloud(StrEnum):
    LOCAL = "local"
    AWS = "aws"


def command(
    folder: Annotated[Path, typer.Argument(help="Where to put them; made if need be.", metavar="FOLDER")] = Path("."),
    minimal: Annotated[
        bool, typer.Option("--minimal", help="Only a job file of four lines, for the gpt2 recipe.")
    ] = False,
    cloud: Annotated[Cloud, typer.Option("--cloud", help="Where it is to train.")] = Cloud.LOCAL,
) -> None:
    """Write a commented job file and a recipe to start from.

    The job is named after the folder. Nothing is written over, and nothing is rented: look at the files, then at the
    plan.

    \b
    Examples:
      bamboo init my-job
      bamboo init small --minimal
      bamboo init in-the-cloud --cloud aws
      bamboo plan my-job/job.yaml

    See also: bamboo plan, bamboo run, docs/job-file.md, docs/recipes.md, docs/aws.md.
    """
    import shlex

    import bamboo_templates

    from bamboo_cli import output
    from bamboo_cli.errors import BambooError, UsageError
    from bamboo_cli.paths import name_like

    if minimal and cloud is not Cloud.LOCAL:
        raise UsageError("a minimal job is for the local cloud", next_step="Leave out --minimal or --cloud.")
    commented = bamboo_templates.AWS_JOB if cloud is Cloud.AWS else bamboo_templates.JOB
    sources = {"job.yaml": bamboo_templates.MINIMAL_JOB if minimal else commented}
    if not minimal:
        sources["recipe.py"] = bamboo_templates.RECIPE
    there = [folder / name for name in sources if (folder / name).exists()]
    if there:
        raise UsageError(
            f"{' and '.join(map(str, there))} {'is' if len(there) == 1 else 'are'} already there; nothing was written",
            next_step="Name another folder.",
        )
    name_of_job = name_like(folder.resolve().name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in sources.items():
            text = source.read_text(encoding="utf-8")
            (folder / name).write_text(_named(text, name_of_job), encoding="utf-8")
            output.line(f"wrote {folder / name}")
    except OSError as error:
        raise BambooError(f"cannot write to {folder}: {error}") from error
    job = shlex.quote(str(folder / "job.yaml"))
    if cloud is Cloud.AWS:
        output.note(f"Put a bucket of yours into `checkpoint.url`; what else is missing says `bamboo check aws {job}`.")
        return
    output.note(f"Look at the plan with `bamboo plan {job}`; train with `bamboo run {job}`.")


def _named(text: str, name: str) -> str:
    """A comment behind the name stays where it is."""
    import re

    return re.sub(
        r"^name: my-job( *)",
        lambda found: f"name: {name}{' ' if found[1] else ''}".ljust(len(found[0])),
        text,
        flags=re.M,
    )
