"""Before anything is rented: is what training needs installed, and does somebody agree to the price."""

import io

import pytest

from bamboo_cli import output, recipe_check
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import BambooError, UsageError

JOB = JobConfig(name="tiny", recipe="mlp", steps=1, global_batch_size=2, microbatch_size=1)


def test_a_missing_extra_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_check, "NEEDED", ("torch_that_is_not_there", "numpy"))

    with pytest.raises(BambooError, match="needs torch_that_is_not_there, which is not installed") as caught:
        recipe_check.check_recipe(JOB)

    assert caught.value.exit_code == 1
    assert "pip install 'bamboo-train[train]'" in caught.value.next_step


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
