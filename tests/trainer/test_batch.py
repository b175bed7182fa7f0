"""A data set that gives something else than it should is told so, with the samples that it was asked for."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from bamboo_trainer.batch import load_batch
from bamboo_trainer.check import check_recipe
from bamboo_trainer.data import sample_ids
from bamboo_trainer.models import mlp
from bamboo_trainer.recipe import RecipeError

from tests.trainer.torch_world import HandRunWorld, make_spec

GOOD_ROWS, GOOD_CLASSES = torch.zeros(4, 16), torch.zeros(4, dtype=torch.long)


@dataclass
class Shards:
    """Gives ``bad`` from step 2 on, as a data set with a broken shard would."""

    bad: Any
    samples: Any
    good_batches: int = 8

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, ids: tuple[int, ...]) -> Any:
        self.good_batches -= 1
        return self.samples.batch(ids) if self.good_batches >= 0 else self.bad


def recipe_with(bad: Any, **changes: Any) -> Any:
    ordinary = mlp.recipe()
    return replace(ordinary, dataset=Shards(bad, ordinary.dataset, **changes))


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (None, "gave NoneType"),
        (GOOD_ROWS, "gave float32 of shape (4, 16)"),
        ((GOOD_ROWS, GOOD_CLASSES, GOOD_CLASSES), "gave (float32 of shape (4, 16), int64 of shape (4,), int64 of"),
        ((None, GOOD_CLASSES), "gave inputs that are NoneType"),
        (([GOOD_ROWS], GOOD_CLASSES), "gave inputs that are (float32 of shape (4, 16))"),
        (((), GOOD_CLASSES), "gave inputs that are ()"),
        ((GOOD_ROWS[:3], GOOD_CLASSES), "gave inputs of 4 samples that are float32 of shape (3, 16)"),
        ((torch.tensor(1.0), GOOD_CLASSES), "gave inputs of 4 samples that are float32 of shape ()"),
        ((GOOD_ROWS, GOOD_CLASSES[:3]), "gave targets of 4 samples that are int64 of shape (3,)"),
    ],
    ids=[
        "nothing",
        "no targets",
        "three",
        "no inputs",
        "a list",
        "empty",
        "too few rows",
        "no rows",
        "too few targets",
    ],
)
def test_a_malformed_batch_in_mid_run_is_the_data_sets_fault(bad: Any, told: str) -> None:
    recipe = recipe_with(bad)
    world = HandRunWorld(make_spec(), recipe, [0])
    world.run(0, 2)
    ids = sample_ids(
        seed=7, step=2, microbatch=0, num_microbatches=4, microbatch_size=4, num_samples=len(recipe.dataset)
    )

    with pytest.raises(RecipeError) as caught:
        world.run(2, 3)

    message = str(caught.value)
    assert message.startswith(
        f"data set Shards, step 2, microbatch 0: batch() of samples {', '.join(map(str, ids))} gave"
    )
    assert told in message
    assert message.endswith(
        "it must give (inputs, targets), the inputs a tensor or a tuple of tensors, stacked over the samples"
    )


def test_a_malformed_batch_is_told_before_anything_is_rented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bamboo_trainer.check.load_recipe", lambda name, options: recipe_with(None, good_batches=0))

    (error,) = check_recipe(make_spec()).errors

    assert "data set Shards, step 0, microbatch 0" in error
    assert "gave NoneType" in error


def test_targets_may_have_several_rows_a_sample_and_be_what_the_loss_likes() -> None:
    spec = make_spec()
    for targets in (torch.zeros(8), {"classes": GOOD_CLASSES}, torch.tensor(1.0), None):
        inputs, found = load_batch(spec, recipe_with(((GOOD_ROWS, torch.zeros(1)), targets), good_batches=0), 0, 0)
        assert found is targets
        assert isinstance(inputs, tuple)
