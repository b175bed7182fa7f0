"""``bamboo verify``"""

from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    run: Annotated[
        str | None,
        typer.Argument(help="Which run; by default the newest.", show_default=False, autocompletion=completion.runs),
    ] = None,
    cluster: options.Cluster = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="FIRST:END", help="Compute these steps again, END not included.", show_default=False),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Compute all steps again, from the seed.")] = False,
    ledger: Annotated[bool, typer.Option("--ledger", help="Only the ledger and the files; needs no torch.")] = False,
    json: options.Json = False,
) -> None:
    """Certify that a run lost no work.

    Every step is in the ledger once, with its own samples; checkpoints and the model are what their checksums say; and
    steps that are computed again in one undisturbed process have the same bits. Exit code 0 only if all of it holds.

    \b
    Examples:
      bamboo verify
      bamboo verify --steps 10:14
      bamboo verify my-job-3f2a1c-1 --cluster my-job --ledger

    See also: bamboo drill, bamboo trace, docs/verify.md.
    """
    from bamboo_cli import output
    from bamboo_cli.errors import NotVerifiedError
    from bamboo_cli.verification import request
    from bamboo_cli.views import certificate as view

    asked = request.parse(steps, whole=all_, ledger_only=ledger)
    with output.waiting("the run to be verified") as saw:
        found = request.verify(run, cluster, asked, saw)
    if json:
        output.json_result(found)
    else:
        output.result(view.certificate(found))
    if not found.ok:
        raise NotVerifiedError(
            f"run {found.run_id} is not verified", next_step="docs/verify.md says what each problem means."
        )
