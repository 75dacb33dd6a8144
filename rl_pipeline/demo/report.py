"""The demo as a page: one HTML file without anything from elsewhere."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from rl_pipeline.demo.outcome import Outcome
from rl_pipeline.demo.population import Measured
from rl_pipeline.demo.scene import Scene
from rl_pipeline.observability.reports.charts import COLOURS
from rl_pipeline.observability.reports.page import style

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 240, 48, 36
_MARGIN = 55
"""Beside the first and the last point, for their names."""
_COMPONENTS = """
    SELECT model_version, term, avg(score) AS mean_score
    FROM trajectory_rewards ARRAY JOIN terms AS term, scores AS score
    WHERE model_version != '' AND isNotNull(score) GROUP BY model_version, term ORDER BY min(sequence), term
"""
_AUDIT = "SELECT at, event, model_id, reason, state FROM deployment_audit FINAL ORDER BY generation"


@dataclass(frozen=True, slots=True)
class _Moment:
    """The shares from a change on."""

    at: datetime
    event: str
    model_id: str
    reason: str
    weights: dict[str, float]


def write_report(scene: Scene, outcome: Outcome, file: Path) -> None:
    """The page of a demo that has come to its end."""
    measures = [outcome.base, *(cycle.measured for cycle in outcome.cycles)]
    moments = [
        _Moment(row["at"], row["event"], row["model_id"], row["reason"], json.loads(row["state"])["weights"])
        for row in scene.rows(_AUDIT)
    ]
    sections = [
        f"<h1>A model that learns from its own experience</h1>{_lead(outcome)}",
        f"<h2>What each model solves</h2>{_learning_curve(measures)}{_table_of(outcome)}",
        f"<h2>What its attempts earned</h2>{_components(scene.rows(_COMPONENTS))}",
        f"<h2>Who served what share</h2>{_timeline(moments)}{_table_of_changes(moments)}",
        _sabotage(outcome),
    ]
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>rl-pipeline demo</title><style>{style()}</style>'
        f'<meta name="viewport" content="width=device-width"><body>{"".join(sections)}</body></html>'
    )
    file.write_text(page, encoding="utf-8")


def _lead(outcome: Outcome) -> str:
    last, cycles = outcome.cycles[-1].measured, len(outcome.cycles)
    return (
        f'<p class="lead">From {outcome.base.rate:.0%} to {last.rate:.0%} of {last.attempts} tasks that nobody learns '
        f"from, in {cycles} {'cycle' if cycles == 1 else 'cycles'} and {outcome.seconds / 60:.1f} minutes, out of "
        f"{outcome.cycles[-1].promotion.recorded} recorded attempts.{_saved(outcome)}</p>"
    )


def _saved(outcome: Outcome) -> str:
    if outcome.time_saved is None:
        return ""
    word = "fewer" if outcome.time_saved >= 0 else "more"
    return f" A solved task costs {abs(outcome.time_saved):.0%} {word} turns, with those that failed attempts cost."


def _learning_curve(measures: Sequence[Measured]) -> str:
    step = (_WIDTH - _LEFT - 2 * _MARGIN) / max(len(measures) - 1, 1)
    places = [(_LEFT + _MARGIN + place * step, measured) for place, measured in enumerate(measures)]
    line = " ".join(f"{x:.1f},{_y(measured.rate):.1f}" for x, measured in places)
    drawn = [f'<polyline points="{line}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>']
    for x, measured in places:
        low, high = _y(measured.rate - 1.96 * measured.error), _y(measured.rate + 1.96 * measured.error)
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{COLOURS[0]}"/>')
        drawn.append(f'<circle cx="{x:.1f}" cy="{_y(measured.rate):.1f}" r="4" fill="{COLOURS[0]}"/>')
        drawn.append(f'<text x="{x:.1f}" y="{high - 6:.1f}" text-anchor="middle">{measured.rate:.0%}</text>')
        drawn.append(f'<text x="{x:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(measured.model)}</text>')
    return _chart(drawn) + '<p class="faint">Success on held-out tasks, with intervals of 95 %.</p>'


def _table_of(outcome: Outcome) -> str:
    rows = [("base", "", outcome.base, "", "")]
    rows += [
        (f"cycle {made.number}", made.job_id, one.measured, f"{made.recorded}", f"{made.seconds:.0f} s")
        for one in outcome.cycles
        for made in [one.promotion]
    ]
    body = "".join(
        f"<tr><td>{name}</td><td>{escape(measured.model)}</td><td>{escape(job)}</td>"
        f'<td class="n">{measured.rate:.1%} ± {measured.error:.1%}</td>'
        f'<td class="n">{_mean(measured.turns, measured.successes)}</td>'
        f'<td class="n">{_mean(measured.turns_of_solved, measured.successes)}</td><td class="n">{recorded}</td>'
        f'<td class="n">{took}</td></tr>'
        for name, job, measured, recorded, took in rows
    )
    head = (
        '<tr><th></th><th>model</th><th>training job</th><th class="n">solved</th>'
        '<th class="n">turns for each solved</th><th class="n">of these its own</th>'
        '<th class="n">attempts so far</th><th class="n">took</th></tr>'
    )
    return f"<table>{head}{body}</table>"


def _mean(total: int, count: int) -> str:
    return f"{total / count:.1f}" if count else ""


def _components(rows: Sequence[dict[str, Any]]) -> str:
    """The mean of each term of the reward, model by model."""
    models = list(dict.fromkeys(str(row["model_version"]) for row in rows))
    terms = sorted({str(row["term"]) for row in rows})
    score = {(row["model_version"], row["term"]): float(row["mean_score"]) for row in rows}
    group = (_WIDTH - _LEFT - 20) / max(len(models), 1)
    bar = group * 0.8 / max(len(terms), 1)
    drawn = []
    for place, model in enumerate(models):
        left = _LEFT + 10 + place * group
        drawn.append(
            f'<text x="{left + group * 0.4:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(model)}</text>'
        )
        for number, term in enumerate(terms):
            value = score.get((model, term))
            if value is not None:
                top = _y(max(0.0, min(1.0, value)))
                drawn.append(
                    f'<rect x="{left + number * bar:.1f}" y="{top:.1f}" width="{bar * 0.9:.1f}" '
                    f'height="{_y(0) - top:.1f}" fill="{_colour(number)}">'
                    f"<title>{escape(term)} {value:.3f}</title></rect>"
                )
    keys = "".join(_key(number, term) for number, term in enumerate(terms))
    return f"{_chart(drawn)}<p>{keys}</p>"


def _timeline(moments: Sequence[_Moment]) -> str:
    """Shares over time, stacked; a line for every change."""
    if len(moments) < 2:
        return ""
    began, ended = moments[0].at, moments[-1].at
    span = max((ended - began).total_seconds(), 1.0) * 1.02
    models = list(dict.fromkeys(model for moment in moments for model in moment.weights))

    def x(at: datetime) -> float:
        return _LEFT + (at - began).total_seconds() / span * (_WIDTH - _LEFT - 10)

    drawn = []
    for place, moment in enumerate(moments):
        until = x(moments[place + 1].at) if place + 1 < len(moments) else _WIDTH - 10.0
        below = 0.0
        for number, model in enumerate(models):
            share = moment.weights.get(model, 0.0)
            if share:
                drawn.append(
                    f'<rect x="{x(moment.at):.1f}" y="{_y(below + share):.1f}" width="{until - x(moment.at):.1f}" '
                    f'height="{_y(below) - _y(below + share):.1f}" fill="{_colour(number)}">'
                    f"<title>{escape(model)} {share:.0%}</title></rect>"
                )
            below += share
    for minute in range(int(span // 60) + 1):
        at = _LEFT + minute * 60 / span * (_WIDTH - _LEFT - 10)
        drawn.append(f'<text x="{at:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{minute} min</text>')
    return f"{_chart(drawn)}<p>{''.join(_key(number, model) for number, model in enumerate(models))}</p>"


def _table_of_changes(moments: Sequence[_Moment]) -> str:
    body = "".join(
        f"<tr><td>{moment.at:%H:%M:%S}</td><td>{escape(moment.event)}</td><td>{escape(moment.model_id)}</td>"
        f"<td>{escape(moment.reason)}</td></tr>"
        for moment in moments
    )
    return f"<table><tr><th>UTC</th><th>event</th><th>model</th><th>why</th></tr>{body}</table>"


def _sabotage(outcome: Outcome) -> str:
    taken = outcome.taken_back
    if taken is None:
        return ""
    evidence = escape(json.dumps(taken.evidence, indent=2))
    return (
        f"<h2>A sabotaged model</h2><p>{escape(taken.model)} was released with its weights drowned in noise, and was "
        f"taken back after {taken.seconds:.0f} s and {taken.sessions} sessions of both models "
        f"({escape(taken.reason)}, proved by {taken.carried_by or 'no metric'}). Nobody was asked.</p>"
        f"<details><summary>The evidence</summary><pre>{evidence}</pre></details>"
    )


def _y(share: float) -> float:
    return (_HEIGHT - _BOTTOM) - share * (_HEIGHT - _BOTTOM - 24)


def _chart(drawn: Sequence[str]) -> str:
    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{_y(share):.1f}" y2="{_y(share):.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{_y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{grid}{"".join(drawn)}</svg>'


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _key(number: int, name: str) -> str:
    return f'<span class="key" style="background:{_colour(number)}"></span>{escape(name)}'
