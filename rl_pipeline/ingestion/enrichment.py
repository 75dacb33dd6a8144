"""What ingest adds to a trajectory: the columns by which it is found, compared and counted.

Everything is computed from the redacted trajectory alone, so that no column knows more than the document. A change of
any rule here raises `ENRICHMENT_VERSION`, and with it the revision under which trajectories are stored.

**Domain**, where the publisher gave none: every domain collects points, and the most points win; a tie goes to the
domain named first below, and no point at all is `general`. The points: 3 for each different tool whose name holds one
of the domain's tool words, 2 for each different word of the domain in the request (the instructions, else the first
user message), 1 for each different file extension of the domain in the request and in the arguments of tools.

**Complexity**, where the publisher gave none: `0.30·s(turns, 10) + 0.20·s(tools, 4) + 0.20·s(kilobytes, 32) +
0.15·s(failed turns, 3) + 0.15·s(agents - 1, 2)`, where `s(x, half) = x / (x + half)`. It lies in [0, 1), rises with
each of the five (turns, different tools, size of the document, turns without success, further agents), and is
0.5 where each is at its half.

**Task type**: as published, else the domain. **Group**: as published, else the task's id, which repeated attempts
share. **Model version**: of the metadata, else that of the last turn whose sampling names one. **Tokens**: the total of
the metadata, else prompts and completions of the metadata, else the token ids of the turns' sampling.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rl_pipeline.contracts import Domain, Trajectory

ENRICHMENT_VERSION = 1

_REQUEST_CHARACTERS = 20_000
_ARGUMENT_CHARACTERS = 4_000
_WORD = re.compile(r"[a-z]+")
_EXTENSION = re.compile(r"\w\.([a-z]{1,8})\b")


@dataclass(frozen=True)
class _Signs:
    """By what a domain is recognised."""

    tools: frozenset[str]
    words: frozenset[str]
    extensions: frozenset[str]


def _signs(tools: str, words: str, extensions: str) -> _Signs:
    return _Signs(*(frozenset(listed.split()) for listed in (tools, words, extensions)))


_SIGNS: Mapping[Domain, _Signs] = {
    "debugging": _signs(
        "debugger pdb gdb profiler",
        "bug bugs crash crashes debug debugging error exception fails failing fix hang regression segfault stacktrace "
        "traceback",
        "dmp log",
    ),
    "data_analysis": _signs(
        "clickhouse dataframe notebook pandas polars query sql statistics",
        "aggregate analyse analysis analyze chart column columns correlation csv data dataset histogram mean median "
        "metrics plot quarter regression rows sales spreadsheet statistics table trend",
        "csv ipynb parquet sql tsv xls xlsx",
    ),
    "research": _signs(
        "arxiv browser crawl fetch knowledge scholar search wikipedia",
        "article citation cite compare explain find literature paper papers research review source sources study "
        "summarise summarize survey what when where who why",
        "bib pdf",
    ),
    "writing": _signs(
        "document draft editor translate",
        "blog draft edit email essay letter paragraph poem proofread prose readme release report rewrite story tone "
        "translate write",
        "doc docx md odt rtf tex txt",
    ),
    "coding": _signs(
        "bash code compile exe execution git ide patch pytest python repl shell terminal",
        "algorithm api class code compile deploy endpoint function implement library method migrate module program "
        "python refactor repository script sort test tests typescript unit",
        "c cc cpp cs css go h html ini java js json jsx kt php pl py rb rs scala sh swift toml ts tsx yaml yml",
    ),
}


@dataclass(frozen=True, slots=True)
class Enrichment:
    """The columns of one trajectory; each has the name that it has in the table `trajectories`."""

    session_id: str
    agent_id: str
    subordinate_profile: str
    parent_trajectory_id: str
    framework: str
    model: str
    model_version: str
    task_id: str
    task_type: str
    group_id: str
    domain: str
    domain_is_inferred: bool
    complexity: float
    complexity_is_inferred: bool
    task_status: str
    started_at: datetime
    ended_at: datetime
    turns: int
    failed_turns: int
    agents: int
    tools: tuple[str, ...]
    total_tokens: int | None
    total_cost_usd: float | None


def enrich(trajectory: Trajectory, document_bytes: int) -> Enrichment:
    """The columns of a trajectory whose document has this size."""
    task, metadata = trajectory.task_context, trajectory.metadata
    tools = tuple(turn.action.tool_name for turn in trajectory.turns if turn.action.tool_name)
    failed = sum(not turn.result.success for turn in trajectory.turns)
    agents = len({trajectory.agent_id, *(turn.agent_id for turn in trajectory.turns if turn.agent_id)})
    domain = task.domain or infer_domain(trajectory)
    inferred_complexity = infer_complexity(
        turns=len(trajectory.turns),
        tools=len(set(tools)),
        document_bytes=document_bytes,
        failed_turns=failed,
        agents=agents,
    )
    return Enrichment(
        session_id=trajectory.session_id,
        agent_id=trajectory.agent_id,
        subordinate_profile=trajectory.subordinate_profile or "",
        parent_trajectory_id=metadata.parent_trajectory_id or "",
        framework=metadata.framework or "",
        model=metadata.model,
        model_version=metadata.model_version or _sampled_version(trajectory),
        task_id=task.task_id or "",
        task_type=task.task_type or domain,
        group_id=task.group_id or task.task_id or "",
        domain=domain,
        domain_is_inferred=task.domain is None,
        complexity=inferred_complexity if task.complexity_score is None else task.complexity_score,
        complexity_is_inferred=task.complexity_score is None,
        task_status=task.task_status or "",
        started_at=trajectory.start_timestamp,
        ended_at=trajectory.end_timestamp,
        turns=len(trajectory.turns),
        failed_turns=failed,
        agents=agents,
        tools=tools,
        total_tokens=_tokens(trajectory),
        total_cost_usd=metadata.total_cost_usd,
    )


def infer_domain(trajectory: Trajectory) -> Domain:
    """The domain that most of the trajectory's signs point to."""
    request = _request(trajectory)[:_REQUEST_CHARACTERS].lower()
    words = set(_WORD.findall(request))
    extensions = set(_EXTENSION.findall(request))
    tools: set[str] = set()
    for turn in trajectory.turns:
        tools.add((turn.action.tool_name or "").lower())
        for text in _texts(turn.action.tool_args):
            extensions.update(_EXTENSION.findall(text[:_ARGUMENT_CHARACTERS].lower()))
    points: Counter[Domain] = Counter()
    for domain, signs in _SIGNS.items():
        known_tools = sum(not signs.tools.isdisjoint(_WORD.findall(tool)) for tool in tools)
        points[domain] = 3 * known_tools + 2 * len(signs.words & words) + len(signs.extensions & extensions)
    domain, most = points.most_common(1)[0]
    return domain if most else "general"


def infer_complexity(*, turns: int, tools: int, document_bytes: int, failed_turns: int, agents: int) -> float:
    """The weighted sum of the module's docstring."""
    weighed = ((0.30, turns, 10), (0.20, tools, 4), (0.20, document_bytes / 1000, 32), (0.15, failed_turns, 3))
    return sum(weight * x / (x + half) for weight, x, half in (*weighed, (0.15, agents - 1, 2)))


def _request(trajectory: Trajectory) -> str:
    if trajectory.task_context.instructions:
        return trajectory.task_context.instructions
    for turn in trajectory.turns:
        if turn.observation.type == "user_message":
            return "\n".join(_texts(turn.observation.content))
    return ""


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for item in items:
            yield from _texts(item)


def _sampled_version(trajectory: Trajectory) -> str:
    versions = (turn.sampling.model_version for turn in reversed(trajectory.turns) if turn.sampling)
    return next((version for version in versions if version), "")


def _tokens(trajectory: Trajectory) -> int | None:
    metadata = trajectory.metadata
    if metadata.total_tokens is not None:
        return metadata.total_tokens
    parts = [count for count in (metadata.prompt_tokens, metadata.completion_tokens) if count is not None]
    if not parts:
        samplings = [turn.sampling for turn in trajectory.turns if turn.sampling]
        ids = [(sampling.prompt_token_ids, sampling.completion_token_ids) for sampling in samplings]
        parts = [len(listed) for pair in ids for listed in pair if listed is not None]
    return sum(parts) if parts else None
