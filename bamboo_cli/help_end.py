"""What every command's help ends with: exit codes and environment variables, which are the same for all."""

import inspect
from collections.abc import Callable
from typing import Any

EXIT_CODES = """\
Exit codes:
  0    done
  1    failed; the message says what to do next
  2    wrong usage, or a mistake in the job file
  3    a bug in Bamboo, with a traceback"""
BUDGET_CODE = "  4    the run was stopped in order at a limit of its job"
SIGNAL_CODES = "  130  Ctrl-C; 128 + n: another signal n"

ENVIRONMENT = """\
Environment:
  BAMBOO_HOME  the folder of all that Bamboo keeps: clusters, checkpoints, bills
               (by default the platform's, ~/.local/state/bamboo on Linux)"""
SETTINGS = """\
  BAMBOO_KEY   a key of the job file, such as BAMBOO_STEPS, BAMBOO_CHECKPOINT__EVERY;
               --set goes before it, the file after it"""
AWS = """\
  AWS_PROFILE, AWS_ACCESS_KEY_ID, ...
               who you are, as for the AWS CLI; read where AWS is asked"""


def help_end(command: Callable[..., Any]) -> str:
    """The epilog of a command's help. The backspace keeps a paragraph's lines as they are."""
    parameters = inspect.signature(command).parameters
    codes, variables = [EXIT_CODES], [ENVIRONMENT]
    if "resume" in parameters:
        codes.append(BUDGET_CODE)
    codes.append(SIGNAL_CODES)
    if "settings" in parameters:
        variables.append(SETTINGS)
    if "settings" in parameters or "all_regions" in parameters:
        variables.append(AWS)
    return "\n\n".join("\b\n" + "\n".join(lines) for lines in (codes, variables))
