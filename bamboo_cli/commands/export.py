"""``bamboo export``"""

from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    run: Annotated[
        str | None,
        typer.Argument(help="Which run; by default the newest.", show_default=False, autocompletion=completion.runs),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where: a folder, or any fsspec URL.")] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="The checkpoint of this step; by default the newest.", show_default=False)
    ] = None,
    cluster: options.Cluster = None,
    json: options.Json = False,
) -> None:
    """Write a checkpoint as a model that other programs load.

    `model.safetensors`, and where the recipe says how, as `gpt2` does, the `config.json` and tokenizer with which
    `transformers` loads it (`from_pretrained`). Other recipes keep their own names of parameters. Files that are there
    already are replaced.

    \b
    Examples:
      bamboo export --to my-model
      bamboo export my-job-3f2a1c-1 --step 499 --to s3://my-bucket/my-model

    See also: bamboo eval, bamboo verify, docs/export.md, docs/checkpoints.md.
    """
    from bamboo_cli import output, saved_model
    from bamboo_cli.errors import UsageError

    if to is None:
        raise UsageError("where to?", next_step="Name a folder: `bamboo export --to my-model`.")
    found = saved_model.export(saved_model.find(run, cluster, step), to)
    if json:
        output.json_result(found)
        return
    output.line(f"step {found.step} of run {found.run_id}: {found.num_parameters} parameters in {found.url}")
    if found.architecture:
        output.note(f'Load it with: transformers.{found.architecture}.from_pretrained("{found.url}")')
    else:
        output.note(
            "The recipe does not say how `transformers` would call its parameters, so they have the recipe's names, "
            "LAYER.PARAMETER; docs/export.md says how it can."
        )
