"""Assembles the commands. The only place where an error becomes text and an exit code."""

import errno
import gc
import sys
import traceback
from typing import Annotated

import typer

from bamboo_cli import streams
from bamboo_cli.commands import (
    check,
    cost,
    cron,
    demo,
    down,
    drill,
    eval,
    events,
    export,
    init,
    logs,
    plan,
    preempt,
    prices,
    run,
    status,
    trace,
    train,
    up,
    verify,
)
from bamboo_cli.errors import BambooError, SignalledError
from bamboo_cli.help_end import help_end
from bamboo_cli.signals import Terminated

EXIT_BUG = 3
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""A disk that is full or only to be read, a terminal that is gone."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: importing rich would double the time it takes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"bamboo {version('bamboo-train')}")
        raise typer.Exit


@app.callback()
def bamboo(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train large PyTorch models on spot instances, and lose no work when they are taken.

    \b
    First steps, without a cloud account:
      bamboo demo              trains a small GPT while machines are taken away
      bamboo init my-job       writes a job file and a recipe to start from
      bamboo run my-job/job.yaml --yes

    Every command has --help, with examples. Completion in your shell: `bamboo --install-completion`, then open a new
    one.
    """


_before = (init, demo, plan, check, prices, drill)
_during = (run, up, train, status, logs, events, trace, cost, verify, eval, export, preempt, down)
for _command in (*_before, *_during):
    app.command(_command.__name__.rpartition(".")[2], epilog=help_end(_command.command))(_command.command)
app.add_typer(cron.app, name="cron")


GARBAGE_OBJECTS = 200_000
"""New objects before garbage is looked for: with 700, commands that load much spend a fifth of their time so."""


def main() -> None:
    """The ``bamboo`` command. Exit codes: 0 done, 1 failed with a message, 2 wrong usage, 3 a bug, 4 a limit of the
    job, 128 + n signal n."""
    gc.set_threshold(GARBAGE_OBJECTS)
    streams.prepare()
    try:
        app()
    except SignalledError as signalled:
        print(f"\n{signalled.message}. {signalled.next_step}".rstrip(), file=sys.stderr)
        sys.exit(signalled.exit_code)
    except BambooError as error:
        print(f"{error.label}: {error.message}", file=sys.stderr)
        if error.next_step:
            print(f"{error.next_step}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Terminated as terminated:
        sys.exit(terminated.exit_code)
    except Exception as error:  # noqa: BLE001 - the last stop: all else has been translated, so this is a bug
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            where = error.filename or "standard output"
            print(f"error: {where} cannot be written: {error.strerror}", file=sys.stderr)
            streams.forget()
            sys.exit(1)
        traceback.print_exc()
        print("\nThis is a bug in Bamboo. Please report it with the text above.", file=sys.stderr)
        sys.exit(EXIT_BUG)
    finally:
        gc.freeze()  # else Python looks through all that was loaded for garbage once more before it ends


if __name__ == "__main__":
    main()
