"""A program of the trainer that is asked one thing, as JSON on standard input, and answers with one line of JSON.

Exit codes: 0 done; 1 it cannot be done (standard error says why, in words for people); 3 it broke.
"""

import os
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

from pydantic import TypeAdapter

from bamboo_trainer.control import encode
from bamboo_trainer.manifest import CheckpointError
from bamboo_trainer.recipe import RecipeError

CANNOT, BROKE = 1, 3

Order = TypeVar("Order")


def answer(kind: type[Order], do: Callable[[Order], object]) -> int:
    """``do`` may raise RecipeError, CheckpointError or OSError for what cannot be done."""
    out = os.dup(1)
    os.dup2(2, 1)  # what a recipe prints must not get among the answers
    try:
        order = TypeAdapter(kind).validate_json(sys.stdin.buffer.read())
        answered = do(order)
        sys.stdout.flush()
        os.dup2(out, 1)
        print(encode(answered).decode(), flush=True)
    except (RecipeError, CheckpointError, OSError) as error:
        print(error, file=sys.stderr)
        return CANNOT
    except Exception:  # noqa: BLE001 - whatever it is, it is a bug, and has to be told apart
        traceback.print_exc()
        return BROKE
    finally:
        sys.stdout.flush()
        os.dup2(out, 1)
        os.close(out)
    return 0
