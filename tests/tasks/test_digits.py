"""The pictures of digits that come with Trellis."""

import numpy as np
from sklearn.datasets import load_digits

from trellis.tasks import DigitsConfig, get_task


def test_the_pictures_are_those_that_scikit_learn_ships() -> None:
    images, labels = load_digits(return_X_y=True)
    config = DigitsConfig()
    config.validation_data.global_batch_size = 297
    inputs, targets = get_task(config).build_inputs(config.validation_data).batch(0)
    assert np.array_equal(np.asarray(inputs) * 16, images[1500:])
    assert np.array_equal(targets, labels[1500:])
