"""What `benchmarks/loop.py` makes of demos that end well, badly, or not at all."""

import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loop.py"
FIGURES = '{"base": {"successes": 1, "attempts": 4}, "cycles": [{"measured": {"successes": 3, "attempts": 4}}]'


@pytest.fixture
def loop() -> ModuleType:
    spec = spec_from_file_location("benchmark_of_the_loop", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_seed_that_fails_takes_no_other_seeds_figures_with_it(
    loop: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "rl-pipeline"
    figures = f'{FIGURES}, "seconds": 300, "time_saved": 0.4444}}'
    program.write_text(
        f'#!/bin/sh\n[ "$4" = 2 ] && exit 1\nmkdir -p $RL_PIPELINE_HOME/demo\n'
        f"echo '{figures}' > $RL_PIPELINE_HOME/demo/figures.json\nexit $4\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    runs: list[dict[str, Any]] = [loop.demo(tmp_path / str(seed), seed, "crafting", cycles=1) for seed in range(3)]
    assert loop.figures_of(runs) == {
        "base": [0.25, 0.25, None],
        "cycles": [[0.75], [0.75], None],
        "final": [0.75, 0.75, None],
        "errors": [[0.2165, 0.2165], [0.2165, 0.2165], None],
        "time_saved": [0.444, 0.444, None],
        "minutes": [5.0, 5.0, None],
        "failed": [False, True, True],
        "gain": 0.5,
    }
    assert loop.figures_of(runs[2:])["gain"] is None


def test_trl_is_shown_at_the_learning_rate_that_is_best_for_it_over_all_seeds(loop: ModuleType) -> None:
    def run(*solved: int) -> dict[str, Any]:
        tried = [
            {"rate": rate, "steps": 96, "measured": {"successes": successes, "attempts": 4}}
            for rate, successes in zip((6e-4, 2e-4), solved, strict=True)
        ]
        return {"failed": False, "compared": {"steps": {"recorded": 40, "trained": 60}, "trl": tried}}

    assert loop.comparison_of([run(3, 2), {"failed": True}, run(0, 2)]) == {
        "trl_rloo_final": [0.5, None, 0.5],
        "trl_errors": [0.25, None, 0.25],
        "trl_rate": 2e-4,
        "recorded_steps": [40, None, 40],
        "training_steps": [60, None, 60],
        "trl_steps": [96, None, 96],
    }
    assert loop.comparison_of([{"failed": True}]) == {}
