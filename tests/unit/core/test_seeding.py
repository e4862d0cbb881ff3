"""Generators are functions of their key, and the numbers they give never change."""

import numpy as np
import pytest

from dpr.core.seeding import generator_for


@pytest.mark.parametrize("key", [(0,), (1, 0, 0, 7), (3, 2**32 - 1, 5), (3, 2**32, 5), (2**70, 1)])
def test_a_generator_is_numpys_for_the_same_key(key: tuple[int, ...]) -> None:
    expected = np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
    assert generator_for(*key).bytes(64) == expected.bytes(64)


def test_keys_of_one_length_have_numbers_of_their_own() -> None:
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2**32 - 1), (2**32 - 1, 0)]
    assert len({generator_for(*key).bytes(16) for key in keys}) == len(keys)


def test_a_negative_number_is_no_key() -> None:
    with pytest.raises(ValueError):
        generator_for(1, -1)
