"""Faults that a test asks for: any action, any code, so many times, before or after its effect; lost replies; gates."""

import fnmatch
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.aws.wire import Call


@dataclass(slots=True, kw_only=True, eq=False)
class Fault:
    """What happens to calls of ``action`` (a pattern: ``Describe*``), ``times`` of them (None: until ``lift``)."""

    action: str
    code: str = ""
    """Answer with this error. Empty, and no ``drop``: the call goes on after its gate."""
    message: str = "asked for by the test"
    status: int | None = None
    """Of HTTP; by default what EC2 sends with the code."""
    times: int | None = 1
    when: Callable[[Call], bool] = lambda call: True
    after: bool = False
    """The call has its effect, and then fails: only the answer is lost."""
    drop: bool = False
    """Close the connection instead of answering."""
    gate: threading.Event | None = None
    """Wait for it, before or after the effect."""
    met: threading.Event = field(default_factory=threading.Event)
    """A call has come to this fault (``after``: its effect is done)."""
    num_met: int = 0

    def lift(self) -> None:
        self.times = 0
        if self.gate is not None:
            self.gate.set()

    def matches(self, call: Call) -> bool:
        return self.times != 0 and fnmatch.fnmatchcase(call.action, self.action) and self.when(call)


class Faults:
    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            for fault in self._faults:
                fault.lift()
            self._faults.clear()

    def taken_by(self, call: Call) -> Fault | None:
        """The first that matches; one of its times is used up."""
        with self._lock:
            for fault in self._faults:
                if fault.matches(call):
                    if fault.times is not None:
                        fault.times -= 1
                    fault.num_met += 1
                    return fault
        return None
