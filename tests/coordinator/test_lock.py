"""One coordinator per cluster, and commands that look whether it lives."""

import threading
from pathlib import Path

import pytest

from bamboo_cli.coordinator import lock


def test_commands_that_look_at_once_do_not_take_each_other_for_a_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one of them would end, by the process id that a dead one left, whoever has that id by now."""
    with lock.held(tmp_path):
        pass  # it ended, and its process id is still there
    look, looks, go_on = lock._try, threading.Event(), threading.Event()

    def slowly(*how: int) -> bool:
        found = look(*how)
        if threading.current_thread() is other:
            looks.set()
            go_on.wait(20)
        return found

    monkeypatch.setattr(lock, "_try", slowly)
    other = threading.Thread(target=lock.is_locked, args=(tmp_path,))
    other.start()
    assert looks.wait(20)
    try:
        assert lock.owner(tmp_path) is None
    finally:
        go_on.set()
        other.join()
