"""Which samples a microbatch has: a pure function of (seed, step, microbatch), so nobody keeps a position.

Samples are drawn without replacement: every epoch is its own permutation of all samples, and the samples of the run are
the epochs one after the other, cut into microbatches. Whoever computes a microbatch gets the same samples.
"""

import math

import numpy as np
import numpy.typing as npt

from bamboo_trainer.randomness import seed_of

NUM_ROUNDS = 4
"""Of the Feistel network; three make it a pseudorandom permutation (Luby and Rackoff, 1988), one is for luck."""


def sample_ids(
    *, seed: int, step: int, microbatch: int, num_microbatches: int, microbatch_size: int, num_samples: int
) -> tuple[int, ...]:
    """Ids in [0, num_samples), ``microbatch_size`` of them. ``microbatch``: index in the global batch."""
    first = (step * num_microbatches + microbatch) * microbatch_size
    ids: list[int] = []
    while len(ids) < microbatch_size:
        epoch, start = divmod(first + len(ids), num_samples)
        end = min(start + microbatch_size - len(ids), num_samples)
        ids.extend(
            permuted(np.arange(start, end, dtype=np.uint64), num_samples, seed_of("epoch", seed, epoch)).tolist()
        )
    return tuple(ids)


def find_repeat(*, seed: int, num_steps: int, samples_per_step: int, num_samples: int) -> tuple[int, int] | None:
    """The first sample that the first ``num_steps`` steps draw twice in one epoch, as (epoch, sample id)."""
    end = num_steps * samples_per_step
    for epoch in range(-(-end // num_samples)):
        count = min(num_samples, end - epoch * num_samples)
        drawn = np.sort(permuted(np.arange(count, dtype=np.uint64), num_samples, seed_of("epoch", seed, epoch)))
        twice = drawn[1:][drawn[1:] == drawn[:-1]]
        if len(twice):
            return epoch, int(twice[0])
    return None


def permuted(positions: npt.NDArray[np.uint64], num_samples: int, key: int) -> npt.NDArray[np.uint64]:
    """What a permutation of ``range(num_samples)``, chosen by ``key``, has at ``positions``.

    A Feistel network over the next square number, walked until it is back in range (Black and Rogaway, 2002): needs no
    memory of the size of the data set, and gives the same bits with every version of every library.
    """
    side = math.isqrt(num_samples - 1) + 1
    values = _scramble(positions, side, key)
    while (outside := values >= num_samples).any():
        values[outside] = _scramble(values[outside], side, key)
    return values


def _scramble(values: npt.NDArray[np.uint64], side: int, key: int) -> npt.NDArray[np.uint64]:
    """A permutation of ``range(side * side)``."""
    modulus = np.uint64(side)
    left, right = np.divmod(values, modulus)
    for index in range(NUM_ROUNDS):
        left, right = right, (left + _mix(right ^ np.uint64(seed_of("feistel", key, index))) % modulus) % modulus
    return left * modulus + right


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
