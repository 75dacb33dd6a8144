"""How terms are found by name, and what becomes of those that break their promise."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from rl_pipeline.errors import PipelineError
from rl_pipeline.rewards.term import (
    InvalidOptions,
    Source,
    Term,
    TermError,
    TermOptions,
    score_of,
    terms_named,
)
from rl_pipeline_tests.rewards.frames import term_batch

BUILT_IN = {
    "answer_quality": (0.0, 1.0),
    "code_quality": (0.0, 1.0),
    "coordination": (-2.5, 3.5),
    "efficiency": (0.0, 1.0),
    "safety_constraint": (0.0, 1.0),
    "task_completion": (0.0, 1.0),
    "tool_execution": (-1.0, 1.0),
    "user_feedback": (0.0, 1.0),
    "voting": (-0.5, 1.0),
}
SAFETY = """
import polars as pl
class Safety:
    name = "safety"; low = 0.0; high = 1.0; source = "benchmark"; version = 3
    def score(self, batch, options):
        return batch.select(score=pl.col("turns") / 10, evidence=pl.lit("as safe as it is long"))
class Nameless:
    pass
class Boundless(Safety):
    name = "boundless"; high = float("inf")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a package with entry points where Python finds installed ones."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package: str, entry_points: str) -> None:
        (tmp_path / f"{package}.py").write_text(SAFETY, encoding="utf-8")
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
        (metadata / "entry_points.txt").write_text(f"[rl_pipeline.reward_terms]\n{entry_points}\n", encoding="utf-8")

    return install


@dataclass
class Fixed:
    """A term that gives back what it was told to."""

    frame: pl.DataFrame
    name: str = "fixed"
    low: float = 0.0
    high: float = 1.0
    source: Source = "automated"
    version: int = 1

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:  # noqa: ARG002 - a term's signature
        return self.frame


def test_the_built_in_terms_are_found_with_their_ranges() -> None:
    assert {term.name: (term.low, term.high) for term in terms_named(BUILT_IN)} == BUILT_IN


def test_terms_come_in_the_order_of_their_names_and_once_each() -> None:
    names = [term.name for term in terms_named(["voting", "efficiency", "voting", "code_quality"])]
    assert names == ["code_quality", "efficiency", "voting"]


def test_a_term_of_an_installed_package_is_used_like_any_other(install: Callable[[str, str], None]) -> None:
    install("safety_reward", "safety = safety_reward:Safety")
    (safety,) = terms_named(["safety"])
    assert isinstance(safety, Term)
    assert safety.version == 3
    assert score_of(safety, term_batch({"turns": 5}), TermOptions())["score"].to_list() == [0.5]


def test_an_unknown_term_is_refused_with_what_there_is() -> None:
    with pytest.raises(PipelineError, match=r"'kindness'.*task_completion.*rl_pipeline.reward_terms") as refused:
        terms_named(["kindness", "voting"])
    assert "\n" not in str(refused.value)


def test_a_package_cannot_take_the_name_of_another_term(install: Callable[[str, str], None]) -> None:
    install("grasping", "efficiency = grasping:Safety")
    with pytest.raises(TermError, match=r"two reward terms are called 'efficiency'.*grasping:Safety"):
        terms_named(["voting"])


def test_two_packages_cannot_share_a_name(install: Callable[[str, str], None]) -> None:
    install("first_safety", "safety = first_safety:Safety")
    install("second_safety", "safety = second_safety:Safety")
    with pytest.raises(TermError, match="two reward terms are called 'safety'"):
        terms_named(["voting"])


def test_a_package_that_cannot_be_loaded_harms_only_who_gives_its_term_weight(
    install: Callable[[str, str], None],
) -> None:
    install("broken_reward", "broken = broken_reward:Missing")
    assert [term.name for term in terms_named(["voting"])] == ["voting"]
    with pytest.raises(TermError, match=r"'broken'.*cannot be loaded.*give it no weight"):
        terms_named(["broken"])


@pytest.mark.parametrize("entry", ["kindness = odd_reward:Safety", "kindness = odd_reward:Nameless"])
def test_what_is_not_the_term_that_its_entry_point_names_is_refused(
    install: Callable[[str, str], None], entry: str
) -> None:
    install("odd_reward", entry)
    with pytest.raises(TermError, match=r"is no reward term.*'kindness'"):
        terms_named(["kindness"])


def test_a_term_without_a_finite_range_is_refused(install: Callable[[str, str], None]) -> None:
    install("boundless_reward", "boundless = boundless_reward:Boundless")
    with pytest.raises(TermError, match="has no range"):
        terms_named(["boundless"])


@pytest.mark.parametrize("score", [1.0000001, -0.1, float("nan"), float("inf")])
def test_a_score_out_of_range_is_refused(score: float) -> None:
    frame = pl.DataFrame({"score": [None, 0.5, score], "evidence": ["", "", ""]})
    with pytest.raises(TermError, match=r"'fixed' gave .*, outside its range \[0.0, 1.0\]"):
        score_of(Fixed(frame), term_batch({}, {}, {}), TermOptions())


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"score": [0.5]}),
        pl.DataFrame({"score": [0.5, 0.5], "evidence": ["", ""]}),
        pl.DataFrame({"score": [1], "evidence": [""]}),
        pl.DataFrame({"score": [0.5], "evidence": [1.0]}),
    ],
)
def test_a_term_that_returns_something_else_is_refused(frame: pl.DataFrame) -> None:
    with pytest.raises(TermError, match="'fixed'"):
        score_of(Fixed(frame), term_batch({}), TermOptions())


@pytest.mark.parametrize(
    "wrong",
    [
        {"stars": "golden"},
        {"error_weight": 0.6},
        {"error_weight": float("nan")},
        {"token_penalty_cap": -1.5},
        {"token_penalty_cap": 0.1},
        {"security_scanner": "none"},
    ],
)
def test_options_that_would_leave_a_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidOptions, match=f"^{next(iter(wrong))}: choose"):
        TermOptions(**wrong)  # type: ignore[arg-type]
