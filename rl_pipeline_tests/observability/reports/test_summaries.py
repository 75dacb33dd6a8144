"""What a summary says, and how it looks: the specification's lines, Markdown, and a page that needs nothing else."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from rl_pipeline.observability.reports.charts import draw
from rl_pipeline.observability.reports.document import (
    Chart,
    Document,
    Items,
    Paragraph,
    Picture,
    Section,
    Series,
    table,
)
from rl_pipeline.observability.reports.estimates import Estimate
from rl_pipeline.observability.reports.findings import Limits, findings_of
from rl_pipeline.observability.reports.markdown import to_markdown
from rl_pipeline.observability.reports.outcomes import GOALS, Outcome
from rl_pipeline.observability.reports.page import to_page
from rl_pipeline.observability.reports.periods import parsed_period, period_up_to
from rl_pipeline.observability.reports.summaries import Summary
from rl_pipeline_tests.observability.reports.figures_of import QUIET, day

NOTHING = day(
    rewards=day().rewards.__class__(),
    standing=None,
    performance=None,
    jobs=(),
    base=None,
    outcomes=tuple(
        Outcome(goal, QUIET.outcomes[0].change.__class__(Estimate(), Estimate()), "nobody") for goal in GOALS
    ),
    storage=QUIET.storage.__class__(None, 0, None, (), 0.0),
)


def test_a_superior_is_sent_the_lines_of_the_specification() -> None:
    findings = findings_of(day(arrivals_before=5, arrivals=day().arrivals.__class__({}, (0,) * 24)), Limits())
    assert Summary("daily", QUIET, findings).text().splitlines() == [
        "Trajectories collected: 1,000 (last 24h)",
        "Average reward: 0.700 ± 0.200",
        "Training jobs: 1 completed, 0 failed",
        "Current model: v1 (deployed 2026-03-08 08:00 UTC)",
        "Model performance: 0.700 (+0.000 vs baseline)",
        "Issues: no trajectory arrived, after 5 in as much time before",
        f"Recommendations: {findings[0].recommendation}",
    ]


def test_what_is_not_known_is_said_to_be_not_known() -> None:
    summary = Summary("weekly", NOTHING, [])
    assert "Average reward: not known" in summary.text()
    assert "Current model: none in service" in summary.text()
    fields = summary.fields()
    unknown = {name for name, value in fields.items() if value is None}
    assert {"reward_mean", "model", "cost_usd", "stream_gb_per_month", "warehouse_gb_per_month"} <= unknown
    assert {"completion_change", "satisfaction_change", "turns_change", "linter_change", "tickets_change"} <= unknown
    assert "$" not in to_markdown(summary.document()).replace("planned: $50", "")
    assert json.dumps(fields)


def test_storage_and_cost_are_told_as_measured_beside_what_was_planned() -> None:
    text = to_markdown(Summary("daily", QUIET, []).document())
    assert "| NATS, RL_TRAJECTORIES | 10,000 B | 0.3 GB | 100 GB |" in text
    assert "| ClickHouse, all tables | 3,000 B | 0.09 GB | 200 GB |" in text
    assert "8.00 GPU hours and 0.00 CPU hours (8.00 GPU hours a job; planned: 8)" in text
    assert "They cost $16.00" in text


def test_text_from_elsewhere_is_neither_markup_nor_a_break_of_a_table() -> None:
    evil = "<script>alert(1)</script> | a\nb"
    document = Document(
        evil,
        evil,
        (
            Section(
                evil, (Paragraph(evil), Items((evil,)), table((evil,), [(evil,)]), _chart(evil), Picture(evil, b"x"))
            ),
        ),
    )
    page = to_page(document)
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    markdown = to_markdown(document)
    assert "<script" not in markdown
    [row] = [line for line in markdown.splitlines() if line.startswith("| &lt;script>alert(1)")][1:]
    assert row.count(" | ") == 0, "the bar inside the cell is escaped"


def _chart(title: str, *values: float | None) -> Chart:
    return Chart(
        title, "lines", tuple(str(place) for place in range(len(values or (1,)))), (Series(title, values or (1.0,)),)
    )


def test_a_command_is_shown_as_one_and_numbers_stand_below_each_other() -> None:
    page = to_page(Document("t", "l", (Section("s", (table(("what", "count"), [("run `ls <x>`", "1,000")]),)),)))
    assert "<td>run <code>ls &lt;x&gt;</code></td>" in page
    assert '<th class="n">count</th>' in page
    assert '<td class="n">1,000</td>' in page


def test_a_line_is_broken_where_there_is_nothing() -> None:
    drawn = draw(_chart("means", 1.0, 2.0, None, 3.0, 4.0))
    assert drawn.count("<polyline") == 2
    assert drawn.count("<circle") == 4
    assert draw(_chart("means", None)) == "<p>No values.</p>"
    assert draw(_chart("means", 0.5, 0.5)).count("<polyline") == 1


@pytest.mark.parametrize("high", [0.0, 1e-6, 0.3, 1.0, 7.0, 1000.0, 123_456.0])
def test_a_chart_has_a_few_round_ticks_that_span_its_values(high: float) -> None:
    chart = Chart("counts", "bars", ("a",), (Series("counts", (high,)),))
    ticks = [float(text) for text in re.findall(r'text-anchor="end">([^<]+)<', draw(chart))]
    assert 3 <= len(ticks) <= 7
    assert ticks[0] == 0
    assert ticks[-1] >= high * 0.999


def test_a_day_ends_at_eight_and_never_in_the_future() -> None:
    now = datetime(2026, 3, 10, 7, tzinfo=UTC)
    assert period_up_to(now.date(), 1, now).end == now
    past = period_up_to(now.date() - timedelta(days=1), 7, now)
    assert (past.start, past.end) == (datetime(2026, 3, 2, 8, tzinfo=UTC), datetime(2026, 3, 9, 8, tzinfo=UTC))
    assert parsed_period("2026-01-01/2026-01-02").length == timedelta(days=2)
    with pytest.raises(ValueError, match="before"):
        parsed_period("2026-01-02/2026-01-01")
