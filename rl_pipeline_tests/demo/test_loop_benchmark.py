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
    figures = f'{FIGURES}, "seconds": 300}}'
    program.write_text(
        f'#!/bin/sh\n[ "$4" = 2 ] && exit 1\nmkdir -p $RL_PIPELINE_HOME/demo\n'
        f"echo '{figures}' > $RL_PIPELINE_HOME/demo/figures.json\nexit $4\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    runs: list[dict[str, Any]] = [loop.demo(tmp_path / str(seed), seed, cycles=1) for seed in range(3)]
    assert loop.figures_of(runs) == {
        "base": [0.25, 0.25, None],
        "cycles": [[0.75], [0.75], None],
        "final": [0.75, 0.75, None],
        "minutes": [5.0, 5.0, None],
        "failed": [False, True, True],
        "gain": 0.5,
    }
    assert loop.figures_of(runs[2:])["gain"] is None
