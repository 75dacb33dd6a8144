"""Scores without a verdict."""

import pytest

from rl_pipeline.validation.benchmarking import BenchmarkFailed, run_benchmarks
from rl_pipeline.validation.suite import ALIASES, BENCHMARKS, UnknownSuite, canonical
from rl_pipeline_tests.validation.scripted import coin, coin_suite

SUITES = [coin_suite(name) for name in BENCHMARKS]


def test_short_names_are_understood_and_full_ones_come_back() -> None:
    scores = run_benchmarks(coin(0.1, 1), suites=SUITES)
    assert list(scores) == ["code_generation", "data_analysis", "research_synthesis"]
    for one in scores.values():
        assert one.items == 200
        assert 0 <= one.interval[0] < one.score < one.interval[1] <= 1
        assert one.score == pytest.approx(0.6, abs=0.12)
    assert list(run_benchmarks(coin(0.1, 1), ["tools", "tool_usage"], suites=SUITES, items=40)) == ["tool_usage"]


def test_every_alias_names_a_benchmark() -> None:
    assert {canonical(alias) for alias in ALIASES} == set(BENCHMARKS)
    assert [canonical(name) for name in BENCHMARKS] == list(BENCHMARKS)


def test_what_is_missing_is_never_left_out_quietly() -> None:
    with pytest.raises(UnknownSuite, match="there is no benchmark 'poetry'"):
        run_benchmarks(coin(0.0, 1), ["code_gen", "poetry"], suites=SUITES)
    with pytest.raises(UnknownSuite, match="tool_usage is not among the suites"):
        run_benchmarks(coin(0.0, 1), ["tool_usage"], suites=SUITES[:2])
    with pytest.raises(BenchmarkFailed, match="too few items"):
        run_benchmarks(coin(0.0, 1), ["code_gen"], suites=[coin_suite("code_generation", items=5)])
    broken = coin_suite("code_generation", scorer=lambda _, __: 1 / 0)
    with pytest.raises(BenchmarkFailed, match="ZeroDivisionError"):
        run_benchmarks(coin(0.0, 1), ["code_gen"], suites=[broken])
