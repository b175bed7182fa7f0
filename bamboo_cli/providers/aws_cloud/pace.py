"""RunInstances at the pace at which EC2 takes it: a bucket of tokens that fills slowly, and is emptied by a refusal.

https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html: 5 at once, then 2 a second, for the whole
account and region. Who knocks faster is refused, and 64 nodes that all come back after 1, 2, 4, ... seconds get five
each time.
"""

import threading
import time
from collections.abc import Callable

BURST = 5
PER_S = 2.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 8.0
"""After a refusal: others of the account draw from the same bucket."""


class Pace:
    """Of one region. Any thread may wait for its turn; turns are given in the order in which they are asked for."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._next_at = clock() - BURST / PER_S
        """When the bucket has been empty, by the tokens that are promised."""
        self._pause_s = FIRST_PAUSE_S

    def take(self) -> None:
        """Returns when it is our turn."""
        with self._lock:
            now = self._clock()
            self._next_at = max(self._next_at, now - BURST / PER_S) + 1 / PER_S
            wait_s = self._next_at - now
        if wait_s > 0:
            self._sleep(wait_s)

    def refused(self) -> None:
        """The bucket is empty, whatever we thought, and others may be at it."""
        with self._lock:
            self._next_at = max(self._next_at, self._clock() + self._pause_s)
            self._pause_s = min(LAST_PAUSE_S, self._pause_s * 2)

    def accepted(self) -> None:
        with self._lock:
            self._pause_s = FIRST_PAUSE_S
