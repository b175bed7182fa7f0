"""``bamboo eval``"""

from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    run: Annotated[
        str | None,
        typer.Argument(help="Which run; by default the newest.", show_default=False, autocompletion=completion.runs),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="What the recipe can open, such as an absolute path; `training`: what was trained on. By default what "
            "the recipe holds out.",
            show_default=False,
        ),
    ] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="So many batches; by default all of the data.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples that are computed at once.")] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="The checkpoint of this step; by default the newest.", show_default=False)
    ] = None,
    cluster: options.Cluster = None,
    json: options.Json = False,
) -> None:
    """Tell the loss of a checkpoint on held-out data.

    Computed here, in one process, without dropout. Of language models also the perplexity of a token. It works while
    the run goes on, and after `bamboo down`.

    \b
    Examples:
      bamboo eval --batches 20
      bamboo eval my-job-3f2a1c-1 --step 499 --data training

    See also: bamboo export, bamboo verify, docs/export.md.
    """
    from bamboo_cli import output, saved_model

    saved = saved_model.find(run, cluster, step)
    found = saved_model.evaluate(saved, data=data, num_batches=batches, batch_size=batch_size)
    if json:
        output.json_result(found)
        return
    also = "" if found.perplexity is None else f", perplexity {found.perplexity:.4g}"
    output.line(
        f"step {found.step} of run {found.run_id}: loss {found.loss:.6g}{also} "
        f"({found.data} data, {found.num_samples} of {output.plural(found.num_samples_there, 'sample')})"
    )
