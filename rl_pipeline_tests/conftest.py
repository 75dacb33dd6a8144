"""What all tests share: the real servers, and the rule that nothing is skipped where everything is installed."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from rl_pipeline.settings import Settings

pytest_plugins = [
    "rl_pipeline_tests.fixtures.nats",
    "rl_pipeline_tests.fixtures.clickhouse",
    "rl_pipeline_tests.fixtures.s3",
    "rl_pipeline_tests.fixtures.ingest",
    "rl_pipeline_tests.fixtures.postgres",
    "rl_pipeline_tests.fixtures.small_model",
    "rl_pipeline_tests.fixtures.releases",
]

# No test asserts a time: an example takes as long as a busy machine lets it.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")

# What a test may need beyond Python and make, by the marker that names it.
PROGRAMS = {"chromium": "chromium", "promtool": "promtool", "amtool": "amtool", "cplusplus": "g++", "curl": "curl"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail when any test is skipped")


def pytest_configure(config: pytest.Config) -> None:
    for marker, program in PROGRAMS.items():
        config.addinivalue_line("markers", f"{marker}: needs the program {program}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: whoever works beside them has the many short ones left."""
    items.sort(key=lambda item: "/end_to_end/" not in item.path.as_posix())


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, program in PROGRAMS.items():
        if item.get_closest_marker(marker) and shutil.which(program) is None:
            pytest.skip(f"needs {program}, which is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.skipped and item.config.getoption("--no-skips") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def settings_are_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own environment must not decide what the tests see."""
    for field in Settings.model_fields:
        monkeypatch.delenv(field.upper(), raising=False)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Real public data, which is not part of the project."""
    directory = os.environ.get("RL_PIPELINE_TEST_DATA")
    if not directory:
        pytest.skip("needs the public data that RL_PIPELINE_TEST_DATA names")
    return Path(directory)


@pytest.fixture
def soak_count() -> Callable[[int, int], int]:
    """`soak_count(small, full)`: the full count under `make soak`, else the small one."""
    return lambda small, full: full if os.environ.get("RL_PIPELINE_SOAK") else small
