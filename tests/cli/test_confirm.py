"""Before anything is rented: does somebody agree to the price."""

import io

import pytest

from bamboo_cli import output
from bamboo_cli.errors import UsageError


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_a_yes_is_a_yes(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal(answer))

    output.confirm("Rent?", yes=False)


@pytest.mark.parametrize("answer", ["\n", "n\n", "", "perhaps\n"])
def test_anything_else_is_a_no(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal(answer))

    with pytest.raises(UsageError, match="nothing was done"):
        output.confirm("Rent?", yes=False)
