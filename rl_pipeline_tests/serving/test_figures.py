"""Figures of models: exact where they count, close where they estimate, and bounded."""

import pytest

from rl_pipeline.serving.figures import MOST_MODELS, Figures, FiguresByModel


def test_the_error_rate_is_that_of_the_last_five_minutes() -> None:
    figures = Figures()
    assert figures.error_rate(0) is None
    for second in range(100):
        figures.add("failed" if second < 10 else "answered", 0.1, float(second))
    assert figures.error_rate(100) == pytest.approx(0.1)
    assert figures.error_rate(350) == pytest.approx(0.0)
    assert figures.error_rate(1000) is None
    assert figures.requests == 100


def test_quantiles_are_within_a_sixth() -> None:
    figures = Figures()
    for number in range(1, 1001):
        figures.add("answered", number / 1000, 0.0)
    for quantile in (0.5, 0.99):
        assert figures.latency_ms(quantile) == pytest.approx(1000 * quantile, rel=0.17)


def test_only_answers_have_a_latency() -> None:
    figures = Figures()
    figures.add("failed", 30.0, 0.0)
    assert figures.latency_ms(0.5) is None


def test_there_are_never_more_models_than_fit() -> None:
    figures = FiguresByModel()
    for number in range(3 * MOST_MODELS):
        figures.of(f"model-{number}")
        figures.forget_all_but({"model-0": None})
    assert len(figures.every()) == MOST_MODELS
    assert "model-0" in figures.every()
