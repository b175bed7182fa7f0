"""The other end of ``outside``: what the process of a tracker does with the lines that it is sent."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, Protocol

LINGER_S = 600
"""To send what is left when nobody speaks any more. Then it ends whatever is left."""


class Service(Protocol):
    next_step: int

    def tell(self, points: list[dict[str, Any]], notes: list[dict[str, Any]]) -> None: ...

    def end(self, state: str | None) -> None:
        """None: the run goes on, and so may the curve."""
        ...


def serve(begin: Callable[[dict[str, Any], dict[str, Any]], Service]) -> int:
    """Until standard input ends. ``begin`` gets the curve and the options."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what packages print must not get among the answers
    service: Service | None = None
    try:
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            match asked["do"]:
                case "begin":
                    service = begin(asked["curve"], asked["options"])
                    answer: dict[str, Any] = {"next_step": service.next_step}
                case "tell":
                    assert service is not None
                    service.tell(asked["points"], asked["notes"])
                    answer = {}
                case _:
                    assert service is not None
                    service.end(asked["state"])
                    service, answer = None, {}
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()
        signal.alarm(LINGER_S)
        if service is not None:
            service.end(None)
    except BrokenPipeError:
        return 1
    except Exception as error:  # noqa: BLE001 - packages raise what they like; it is told, and tried again
        traceback.print_exc()
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        answers.flush()
        return 1
    return 0
