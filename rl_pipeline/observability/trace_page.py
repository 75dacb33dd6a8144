"""A trace as one page of HTML, which needs nothing else and does nothing: no script, no address outside, no request."""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from rl_pipeline.contracts.feedback import FeedbackSignal
from rl_pipeline.observability.readable import action_name, html, moment
from rl_pipeline.observability.traces import Row, Trace

# Should any text ever come through unescaped, the browser still runs and fetches nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_SHORT = 80
"""Characters of an argument that need no place of their own."""


def trace_page(trace: Trace) -> str:
    """The page."""
    identity = html(trace.document["trajectory_id"])
    sections = [
        ("reward", "Reward", _reward(trace)),
        ("turns", "Turns", "".join(_turns(trace))),
        ("feedback", "Feedback", _feedback(trace)),
        ("trained", "What learnt from it", _trained(trace)),
    ]
    style = files(__package__).joinpath("trace_page.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Trajectory {identity}</title>
<style>
{style}</style>
</head>
<body>
<div class="page">
<nav aria-label="On this page">{_contents(trace, [(anchor, name) for anchor, name, _ in sections])}</nav>
<main>
{_head(trace)}
{"".join(f'<h2 id="{anchor}">{name}</h2>{content}' for anchor, name, content in sections)}
</main>
</div>
</body>
</html>
"""


def _contents(trace: Trace, sections: Sequence[tuple[str, str]]) -> str:
    links = ['<a href="#top"><span>Trajectory</span></a>']
    for anchor, name in sections:
        links.append(f'<a href="#{anchor}"><span>{name}</span></a>')
        if anchor == "turns":
            links += [
                f'<a class="step{_failed(turn)}" href="#turn-{place}">'
                f"<span>{place} {html(action_name(turn['action']))}</span>{_signed(reward)}</a>"
                for place, (turn, reward) in enumerate(zip(trace.turns, trace.turn_rewards, strict=True), 1)
            ]
    return "".join(links)


def _head(trace: Trace) -> str:
    document, stored = trace.document, trace.stored
    task, made = document["task_context"], document["metadata"]
    status = stored["task_status"] or "unknown"
    colour = {"success": "good", "failed": "bad", "abandoned": "bad"}.get(status, "faint")
    chips: list[tuple[str, Any]] = [
        ("model version", stored["model_version"] or "not said"),
        ("model", made["model"]),
        ("agent", document["agent_id"]),
        ("profile", document.get("subordinate_profile")),
        ("task type", stored["task_type"]),
        ("domain", f"{stored['domain']}{' (guessed)' if stored['domain_is_inferred'] else ''}"),
        ("framework", made.get("framework")),
        ("task", task.get("task_id")),
        ("world", task.get("environment")),
        ("session", document["session_id"]),
        ("superior's trajectory", made.get("parent_trajectory_id")),
        ("began", f"{moment(stored['started_at'])} UTC"),
        ("took", f"{(stored['ended_at'] - stored['started_at']).total_seconds():g} s"),
        ("tokens", stored["total_tokens"]),
        ("cost", f"{stored['total_cost_usd']:g} USD" if stored["total_cost_usd"] is not None else None),
        ("stream", f"{stored['stream']} {stored['sequence']}"),
        ("redaction revision", stored["revision"]),
    ]
    shown = "".join(
        f'<span class="chip"><b>{name}</b>{html(str(value))}</span>' for name, value in chips if value not in (None, "")
    )
    first = trace.turns[0]["observation"]["content"]
    return f"""<header id="top" class="card">
<h1>{html(task.get("instructions") or first)}</h1>
<p class="faint"><code>{html(document["trajectory_id"])}</code></p>
<div class="chips"><span class="chip {colour}"><b>ended</b>{html(status)}</span>{shown}</div>
</header>
<div class="figures">{"".join(_figures(trace))}</div>"""


def _figures(trace: Trace) -> Iterable[str]:
    reward = trace.reward
    if reward is None:
        yield _figure("not scored yet", "reward", "")
    else:
        cold = ", with too few earlier ones to compare" if reward["cold_start"] else ""
        yield _figure(f"{reward['raw_total']:.3f}", "reward, raw", f"{reward['total']:.3f} normalised{cold}")
    failed = trace.stored["failed_turns"]
    yield _figure(str(len(trace.turns)), "turns", f"{failed} failed" if failed else "none failed")
    rules = ", ".join(f"{rule} {count}" for rule, count in trace.redactions.items())
    yield _figure(str(sum(trace.redactions.values())), "redactions", html(rules))
    heard = len(trace.feedback) + len(trace.document["metadata"].get("feedback") or ())
    yield _figure(str(heard), "signals of feedback", "")
    directly = sum(one["directly"] for one in trace.checkpoints)
    more = f"{directly} learnt from it, {len(trace.checkpoints) - directly} descend from these"
    yield _figure(str(len(trace.checkpoints)), "checkpoints", more)


def _figure(number: str, name: str, more: str) -> str:
    return f'<div class="card"><small>{name}</small><strong>{number}</strong><small>{more}</small></div>'


def _reward(trace: Trace) -> str:
    reward = trace.reward
    if reward is None:
        return '<div class="card faint">It has no reward yet: materialize trajectory_rewards of its day.</div>'
    components = [
        (
            html(part.name.replace("_", " ")),
            f'<meter min="0" max="{2**20}" value="{part.units}"></meter>',
            _number(f"{part.score:.3f}"),
            _number(f"{part.normalised:.3f}"),
            _number(f"{part.weight:.0%}"),
            _number(str(part.compared_with)),
            html(part.evidence),
        )
        for part in trace.components
    ]
    parts = _table(("component", "", "#score", "#normalised", "#weight", "#compared with", "evidence"), components)
    credit = ""
    if len(trace.credits) > 1:
        rows = [(html(agent), _number(f"{share:+.3f}")) for agent, share in trace.credits.items()]
        credit = f"<h4>Credit of each agent</h4>{_table(('agent', '#credit'), rows)}"
    history = ""
    if len(trace.revisions) > 1:
        earlier = [
            (
                html(moment(one["scored_at"])),
                _number(str(one["revision"])),
                f"<code>{html(one['configuration'])}</code>",
                _number(f"{one['raw_total']:.3f}"),
                _number(f"{one['total']:.3f}"),
            )
            for one in trace.revisions
        ]
        names = ("scored (UTC)", "#revision", "configuration", "#raw", "#normalised")
        history = (
            f"<details><summary>All {len(earlier)} rewards that it had</summary>{_table(names, earlier)}</details>"
        )
    about = (
        f'<p class="faint">Revision {reward["revision"]} under the configuration '
        f"<code>{html(reward['configuration'])}</code>, confidence {reward['confidence']:.2f}.</p>"
    )
    return f'<div class="card">{parts}{credit}{about}{history}</div>'


def _turns(trace: Trace) -> Iterable[str]:
    earlier: Any = None
    for place, (turn, reward) in enumerate(zip(trace.turns, trace.turn_rewards, strict=True), 1):
        action, result = turn["action"], turn["result"]
        told = [
            moment(turn["timestamp"]),
            turn.get("agent_id"),
            f"{result['execution_time_ms']:g} ms" if result.get("execution_time_ms") is not None else None,
        ]
        facts = " · ".join(html(fact) for fact in told if fact)
        yield f"""<article class="card turn{_failed(turn)}" id="turn-{place}">
<header><h3>{place} · {html(action_name(action))}</h3><span class="faint">{facts}</span>
<span class="number">{_signed(reward, "no reward")}</span></header>
{_shown(turn["observation"], earlier)}{_thoughts(turn)}{_action(action)}{_result(result, action)}{_sampling(turn)}
</article>"""
        earlier = result.get("output")


def _shown(observation: Row, earlier: Any) -> str:
    kind = html(observation["type"].replace("_", " "))
    if earlier not in (None, "") and observation["content"] == earlier:
        return f"<h4>Shown: {kind}, the result above</h4>"
    return f"<h4>Shown: {kind}</h4>{_block(observation['content'])}"


def _thoughts(turn: Row) -> str:
    thoughts = turn.get("thought_process") or []
    lines = "".join(f'<p class="thought">{html(thought)}</p>' for thought in thoughts)
    return f"<h4>Thoughts</h4>{lines}" if lines else ""


def _action(action: Row) -> str:
    arguments = action.get("tool_args") or {}
    shown = "".join(_argument(name, value) for name, value in arguments.items())
    response = action.get("raw_response")
    if response and not arguments:
        shown += f"<h4>Response</h4>{_block(response)}"
    elif response and response not in arguments.values():
        shown += f"<details><summary>The whole response of the model</summary>{_block(response)}</details>"
    return shown


def _argument(name: str, value: Any) -> str:
    if isinstance(value, str | int | float) and len(str(value)) <= _SHORT and "\n" not in str(value):
        return f'<p class="argument"><b>{html(name)}</b> <code>{html(value)}</code></p>'
    return f"<h4>{html(name)}</h4>{_block(value)}"


def _result(result: Row, action: Row) -> str:
    output, error = result.get("output"), result.get("error")
    word = '<span class="good">succeeded</span>' if result["success"] else '<span class="bad">failed</span>'
    shown = f"<h4>Result: {word}</h4>"
    if output not in (None, "", action.get("raw_response")) and output != error:
        shown += _block(output)
    return shown + (f'<pre class="error">{html(error)}</pre>' if error else "")


def _sampling(turn: Row) -> str:
    sampling = turn.get("sampling")
    if not sampling:
        return ""
    told = [f"by {html(sampling['model_version'])}"] if sampling.get("model_version") else []
    drawn, logprobs = sampling.get("completion_token_ids") or [], sampling.get("logprobs") or []
    told += [f"{len(drawn)} tokens"] if drawn else []
    told += [f"mean log-probability {sum(logprobs) / len(logprobs):.3f}"] if logprobs else []
    return f'<p class="faint">Sampled {", ".join(told)}</p>' if told else ""


def _feedback(trace: Trace) -> str:
    # A signal is open to names that are not ours, and only ours mean what the columns say.
    inside = [
        {"channel": "in the trajectory", **{name: signal.get(name) for name in FeedbackSignal.model_fields}}
        for signal in trace.document["metadata"].get("feedback") or ()
    ]
    rows = [
        (
            html(str(one["kind"]).replace("_", " ")),
            "★" * int(one.get("rating") or 0),
            html(one.get("text") or ""),
            html(str(one["turn_id"])) if one.get("turn_id") else "all of it",
            html(one.get("channel") or ""),
            html(moment(one.get("heard_at") or one.get("timestamp"))),
        )
        for one in [*inside, *trace.feedback]
    ]
    if not rows:
        return '<div class="card faint">None.</div>'
    return f'<div class="card">{_table(("kind", "stars", "text", "turn", "channel", "heard (UTC)"), rows)}</div>'


def _failed(turn: Row) -> str:
    return "" if turn["result"]["success"] else " failed"


def _trained(trace: Trace) -> str:
    if not trace.datasets:
        return '<div class="card faint">Nothing: it is in no dataset.</div>'
    datasets = [
        (
            f"<code>{html(one['dataset_id'])}</code>",
            html(one["algorithm"]),
            html(", ".join(one["roles"])),
            html(one["split"]),
            _number(f"{one['raw_total']:.3f}"),
            _number(str(one["reward_revision"])),
            _number(f"{one['trajectories']:,}"),
            html(moment(one["created_at"])),
        )
        for one in trace.datasets
    ]
    names = ("dataset", "algorithm", "as", "split", "#reward then", "#its revision", "#of trajectories", "made (UTC)")
    shown = _table(names, datasets)
    checkpoints = [
        (
            f"<code>{html(one['id'])}</code>",
            f"{html(one['algorithm'])} on {html(one['base_model'])}",
            f"<code>{html(one['dataset_id'])}</code>",
            "it was in the dataset" if one["directly"] else "by descent",
            html(one["model_id"] or "not released"),
            "yes" if one["deployed"] else "no",
            html(moment(one["created_at"])),
        )
        for one in trace.checkpoints
    ]
    if checkpoints:
        heads = ("checkpoint", "trained by", "from dataset", "learnt from it", "released as", "deployed", "made (UTC)")
        shown += f"<h4>Checkpoints</h4>{_table(heads, checkpoints)}"
    return f'<div class="card">{shown}</div>'


def _block(value: Any) -> str:
    return f"<pre>{html(value)}</pre>" if value not in ("", None) else '<p class="faint">Nothing.</p>'


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML; a name that begins with # is of numbers."""
    heads = "".join(
        f'<th class="number">{name[1:]}</th>' if name.startswith("#") else f"<th>{name}</th>" for name in names
    )
    body = "".join(
        f"<tr>{''.join(cell if cell.startswith('<td') else f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _number(text: str) -> str:
    return f'<td class="number">{text}</td>'


def _signed(reward: float | None, without: str = "") -> str:
    if reward is None:
        return f'<span class="faint">{without}</span>'
    return f'<span class="{"good" if reward > 0 else "bad" if reward < 0 else "faint"}">{reward:+.3f}</span>'
