"""The picture of a training: a panel for each curve, and the same picture for the same curves."""

import io
from typing import Any

from matplotlib.image import imread

from rl_pipeline.training.checkpoints.curves import Curve, draw_curves

LOSS: Curve = [(1, 2.0), (2, 1.5), (3, 1.2)]


def size_of(picture: bytes) -> tuple[int, int]:
    pixels: Any = imread(io.BytesIO(picture), format="png")
    height, width, _ = pixels.shape
    return width, height


def test_the_same_curves_give_the_same_picture_and_others_another() -> None:
    assert draw_curves({"loss": LOSS}) == draw_curves({"loss": list(LOSS)})
    assert draw_curves({"loss": LOSS}) != draw_curves({"loss": [*LOSS, (4, 0.2)]})
    assert draw_curves({"loss": LOSS}) != draw_curves({"learning_rate": LOSS})


def test_each_known_curve_with_points_has_a_panel() -> None:
    one = draw_curves({"loss": LOSS})
    width, height = size_of(one)
    assert size_of(draw_curves({"loss": LOSS, "reward_mean": LOSS, "policy_entropy": LOSS})) == (3 * width, height)
    assert draw_curves({"loss": LOSS, "kl_divergence": [], "of no interest": LOSS}) == one


def test_a_training_without_curves_has_a_picture_too() -> None:
    assert size_of(draw_curves({})) == size_of(draw_curves({"loss": LOSS}))


def test_a_picture_is_small_enough_for_the_run_s_page() -> None:
    noisy = [(step, (step * 7919 % 101) / 100) for step in range(2000)]
    names = ("loss", "reward_mean", "policy_entropy", "kl_divergence", "learning_rate")
    assert len(draw_curves(dict.fromkeys(names, noisy))) < 75_000
