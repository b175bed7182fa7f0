from itertools import pairwise

from bamboo_trainer.data import sample_ids
from hypothesis import given
from hypothesis import strategies as st


def ids_of(step, microbatch, *, num_samples, num_microbatches=4, microbatch_size=3, seed=7):
    return sample_ids(
        seed=seed,
        step=step,
        microbatch=microbatch,
        num_microbatches=num_microbatches,
        microbatch_size=microbatch_size,
        num_samples=num_samples,
    )


@given(
    num_samples=st.integers(1, 200),
    num_microbatches=st.integers(1, 6),
    microbatch_size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
)
def test_every_epoch_has_every_sample_once(num_samples, num_microbatches, microbatch_size, seed):
    num_epochs = 3
    num_steps = -(-num_epochs * num_samples // (num_microbatches * microbatch_size))
    drawn = [
        sample
        for step in range(num_steps)
        for microbatch in range(num_microbatches)
        for sample in ids_of(
            step,
            microbatch,
            num_samples=num_samples,
            num_microbatches=num_microbatches,
            microbatch_size=microbatch_size,
            seed=seed,
        )
    ]
    for epoch in range(num_epochs):
        assert sorted(drawn[epoch * num_samples : (epoch + 1) * num_samples]) == list(range(num_samples))


def test_epochs_and_seeds_have_different_orders():
    def epoch(index, seed=7):
        return ids_of(index, 0, num_samples=100, num_microbatches=1, microbatch_size=100, seed=seed)

    assert len({epoch(0), epoch(1), epoch(2), epoch(0, seed=8)}) == 4
    assert epoch(0) != tuple(range(100))


def test_the_order_is_scattered():
    """Neither neighbours stay neighbours, nor do early samples come early."""
    order = ids_of(0, 0, num_samples=1000, num_microbatches=1, microbatch_size=1000)
    steps_of_one = sum(abs(a - b) == 1 for a, b in pairwise(order))
    assert steps_of_one < 15, "2 are expected of 999"
    assert 400 < sum(order[:200]) / 200 < 600


def test_the_order_never_changes_between_versions():
    """A run that is resumed by a newer Bamboo must go on in the same order."""
    assert ids_of(0, 0, num_samples=1000) == (270, 99, 280)


def test_a_large_data_set_needs_no_memory_of_its_size():
    assert all(0 <= i < 10**15 for i in ids_of(10**6, 0, num_samples=10**15))
