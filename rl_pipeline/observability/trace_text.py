"""A trace as text for a terminal."""

from rl_pipeline.observability.readable import action_name, moment, one_line
from rl_pipeline.observability.traces import Trace

_LONGEST = 300


def trace_text(trace: Trace) -> str:
    """The trace in some lines; long values are cut."""
    document, stored, reward = trace.document, trace.stored, trace.reward
    lines = [
        f"trajectory {one_line(document['trajectory_id'])}",
        f"task: {_short(document['task_context'].get('instructions') or trace.turns[0]['observation']['content'])}",
        f"ended: {one_line(stored['task_status'] or 'unknown')} after {len(trace.turns)} turns, "
        f"{one_line(moment(stored['ended_at']))} UTC",
        f"model: {one_line(document['metadata']['model'])}, version {one_line(stored['model_version'] or 'not said')}",
        f"redactions: {', '.join(f'{one_line(rule)} {count}' for rule, count in trace.redactions.items()) or 'none'}",
    ]
    for place, (turn, earned) in enumerate(zip(trace.turns, trace.turn_rewards, strict=True), 1):
        result, arguments = turn["result"], turn["action"].get("tool_args")
        told = f" ({earned:+.3f})" if earned is not None else ""
        lines.append(f"\n{place}. {one_line(action_name(turn['action']))}{told}")
        lines.append(f"   < {_short(turn['observation']['content'])}")
        lines.append(f"   > {_short(arguments or turn['action'].get('raw_response') or '')}")
        outcome = result.get("error") or result.get("output") or ""
        lines.append(f"   = {'' if result['success'] else 'failed: '}{_short(outcome)}")
    lines.append("")
    if reward is None:
        lines.append("reward: not scored yet")
    else:
        lines.append(f"reward: {reward['raw_total']:.3f} raw, {reward['total']:.3f} normalised")
        lines += [
            f"  {one_line(part.name)}: {part.score:.3f} with weight {part.weight:.0%}; {_short(part.evidence)}"
            for part in trace.components
        ]
    lines += [f"credit: {one_line(agent)} {share:+.3f}" for agent, share in trace.credits.items()]
    lines += [
        one_line(f"feedback: {one['kind']} {one['rating'] or ''} {_short(one['text'])}") for one in trace.feedback
    ]
    lines += [
        one_line(f"dataset: {one['dataset_id']}, {one['split']}, as {', '.join(one['roles'])}")
        for one in trace.datasets
    ]
    lines += [
        one_line(
            f"checkpoint: {one['id']}, {one['algorithm']} on {one['base_model']}, "
            f"{'from these datasets' if one['directly'] else 'by descent'}, released as {one['model_id'] or 'nothing'}"
        )
        for one in trace.checkpoints
    ]
    return "\n".join(lines)


def _short(value: object) -> str:
    text = one_line(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
