"""From a choice to the rows of its files: documents are read in order of id, and told as messages."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from pathlib import Path

import orjson
import polars as pl

from rl_pipeline.curation.candidates import LONG_OPENING
from rl_pipeline.curation.checks import Leakage, leakage, residual_secrets
from rl_pipeline.curation.choosing import TOLD, Choice
from rl_pipeline.curation.conversations import Conversation, Message, Unusable, conversation_of, dump, opening_of
from rl_pipeline.curation.files import CONVERSATIONS, PAIRS, PROMPTS, Row, WrittenFile, read_rows, write_rows
from rl_pipeline.curation.pairs import pairs_across_requests
from rl_pipeline.curation.policy import Criteria, CurationPolicy
from rl_pipeline.curation.preferences import preference_of
from rl_pipeline.curation.splits import TRAIN
from rl_pipeline.curation.spool import Spool, spooling
from rl_pipeline.environments.environment import InvalidTask
from rl_pipeline.environments.worlds import Worlds
from rl_pipeline.stores.warehouse import Warehouse

# The ids of a query travel in its address, which has a limit.
_IDS_PER_QUERY = 500
# Documents can be large, and only so many are in memory at a time.
_SMALL_BLOCKS = {"max_block_size": 64}


@dataclass(frozen=True)
class Written:
    """The files, and what was left of the choice when it was written."""

    choice: Choice
    files: Sequence[WrittenFile]
    roles: pl.DataFrame
    """trajectory_id, role: what each was used for."""
    environments: Counter[str]
    """How many of the prompts can be played in each world; under no name, those that cannot be played."""
    leakage: Leakage
    residual: Counter[str]
    """Sensitive values, by kind, in trajectories that were left out for them."""


def write_files(
    warehouse: Warehouse, choice: Choice, directory: Path, criteria: Criteria, policy: CurationPolicy
) -> Written:
    """Write what was chosen; trajectories that teach nothing, or hold what must not flow on, are left out of it."""
    with spooling(directory) as spool:
        reading = _Reading(spool, policy, dict(choice.rows.select("trajectory_id", "task").iter_rows()))
        for documents in _documents(warehouse, choice.rows["trajectory_id"]):
            reading.add(documents)
        choice = choice.without(reading.left_out(choice.rows["trajectory_id"]))
        choice = choice.dealt(pl.DataFrame(reading.told, TOLD, orient="row"), criteria.holdout, policy.seed)
        files = []
        if choice.has_pairs:
            compared: list[pl.DataFrame] = []
            rows = _rows_of_pairs(choice, spool, criteria.pair_margin, policy, compared)
            files.append(write_rows(directory / PAIRS, rows))
            choice = _with_pairs(choice, pl.concat(compared))
        else:
            choice = replace(choice, pairs=choice.pairs.clear().with_columns(across_requests=pl.lit(False)))
        role = "demonstration" if choice.algorithm == "sft" else "scored"
        files.append(write_rows(directory / CONVERSATIONS, _conversation_rows(choice.rows, spool, role)))
        prompts = _prompt_sources(choice)
        if choice.is_online or prompts.height:
            files.append(write_rows(directory / PROMPTS, _prompt_rows(prompts, spool)))
    return Written(
        choice=choice,
        files=sorted(files, key=lambda file: file.name),
        roles=_roles(choice, prompts, role),
        environments=Counter(prompts["environment"]),
        leakage=leakage(read_rows(directory / CONVERSATIONS)),
        residual=reading.residual,
    )


class _Reading:
    """Documents into the spool, except those that cannot be used."""

    def __init__(self, spool: Spool, policy: CurationPolicy, tasks: Mapping[str, str]) -> None:
        self._spool = spool
        self._policy = policy
        self._tasks = tasks
        self.told: list[tuple[str, str, int, str, int, int]] = []
        """As `TOLD`."""
        self._reasons: dict[str, str] = {}
        self.residual: Counter[str] = Counter()

    def add(self, documents: pl.DataFrame) -> None:
        """Read some documents."""
        for trajectory_id, task_type, document in documents.iter_rows():
            found = conversation_of(document, self._policy.longest_observation)
            if isinstance(found, Unusable):
                self._reasons[trajectory_id] = found.reason
                continue
            if not _can_be_played(found, self._policy.worlds):
                found = replace(found, environment=None, environment_task=None)
            text = orjson.dumps(found.messages).decode()
            named = dump([self._tasks[trajectory_id], task_type, found.environment_task])
            residual = residual_secrets([text, named], self._policy.allowed, self._policy.tolerated)
            if residual:
                self._reasons[trajectory_id] = "sensitive"
                self.residual += residual
                continue
            facts = {
                "task_type": task_type,
                "environment": found.environment,
                "environment_task": found.environment_task,
            }
            self._spool.add(trajectory_id, text, facts)
            setup, *words = _hashes(found)
            self.told.append((trajectory_id, found.environment or "", setup, task_type, *words))

    def left_out(self, trajectory_ids: Iterable[str]) -> dict[str, str]:
        """Those that are not in the spool, and why; some may be gone from the warehouse since they were chosen."""
        return {one: self._reasons.get(one, "gone") for one in trajectory_ids if one not in self._spool}


def _can_be_played(found: Conversation, worlds: Worlds) -> bool:
    """Whether it is of a world that exists, and names a task of it."""
    world = worlds.get(found.environment)
    setup = orjson.loads(found.environment_task or "null")
    if world is None or not isinstance(setup, dict):
        return False
    try:
        world.task(setup)
    except InvalidTask:
        return False
    return True


def _hashes(found: Conversation) -> tuple[int, int, int]:
    """Of the setup of its world (0 if it has none), of the words that open it, of these and all that was written."""
    opening = opening_of(found.messages)
    written = [message for message in found.messages[len(opening) :] if message["role"] == "assistant"]
    setup = _hash(found.environment or "", found.environment_task or "") if found.environment else 0
    asked = "\n".join(map(_words, opening))
    if len(asked) >= LONG_OPENING:
        # A time or a number of a run in it does not make it another request.
        asked = re.sub(r"\w*\d\w*", "0", asked)
    return setup, _hash(asked), _hash(*map(_words, [*opening, *written]))


def _words(message: Message) -> str:
    """What it says but for case and punctuation."""
    text = f"{message['content']} {dump(message.get('tool_calls') or '')}".casefold()
    return " ".join(re.findall(r"\w+", text)) or "".join(text.split())


def _hash(*texts: str) -> int:
    return int.from_bytes(blake2b("\n".join(texts).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _documents(warehouse: Warehouse, trajectory_ids: pl.Series) -> Iterator[pl.DataFrame]:
    """trajectory_id, task_type, document: in the order of the table, so that each part of it is read once."""
    ids: list[str] = trajectory_ids.sort().to_list()
    for start in range(0, len(ids), _IDS_PER_QUERY):
        yield from warehouse.stream(
            """
            SELECT trajectory_id, task_type, document FROM trajectories FINAL
            PREWHERE trajectory_id IN {ids:Array(String)}
            """,
            {"ids": ids[start : start + _IDS_PER_QUERY]},
            _SMALL_BLOCKS,
        )


def _conversation_rows(rows: pl.DataFrame, spool: Spool, role: str) -> Iterator[Row]:
    columns = rows.select("trajectory_id", "split", "task", pl.col("domain").cast(pl.String), reward="raw_total")
    for row in columns.iter_rows(named=True):
        one = row["trajectory_id"]
        yield {**row, "role": role, "messages": spool.text(one), **spool.facts(one)}


def _rows_of_pairs(
    choice: Choice, spool: Spool, margin: float, policy: CurationPolicy, compared: list[pl.DataFrame]
) -> Iterator[Row]:
    """The rows of the pairs that can be compared, which are noted in `compared` with `across_requests`."""
    usable: list[int] = []
    for number, row in enumerate(choice.pairs.iter_rows(named=True)):
        sides = preference_of(spool.messages(row["chosen_id"]), spool.messages(row["rejected_id"]))
        if sides is None:
            continue
        usable.append(number)
        texts = {side: orjson.dumps(getattr(sides, side)).decode() for side in ("prompt", "chosen", "rejected")}
        yield {**row, **texts, "pair_id": _pair_id(row), "across_requests": False}
    pairs = choice.pairs[usable]
    compared.append(pairs.with_columns(across_requests=pl.lit(False)))
    if not choice.is_online or pairs.filter(pl.col("split") == TRAIN).height >= policy.enough_pairs:
        return
    across = pairs_across_requests(choice.rows.join(pairs, on="task", how="anti"), margin, policy)
    across = choice.with_sides(across).with_columns(across_requests=pl.lit(True))
    compared.append(across)
    for row in across.iter_rows(named=True):
        texts = {"prompt": "[]", "chosen": spool.text(row["chosen_id"]), "rejected": spool.text(row["rejected_id"])}
        yield {**row, **texts, "pair_id": _pair_id(row)}


def _pair_id(row: Row) -> str:
    return sha256(f"{row['chosen_id']} {row['rejected_id']}".encode()).hexdigest()[:32]


def _with_pairs(choice: Choice, pairs: pl.DataFrame) -> Choice:
    """The choice with these pairs alone; for DPO, what is in none of them teaches nothing."""
    choice = replace(choice, pairs=pairs)
    if choice.is_online:
        return choice
    members = {*choice.pairs["chosen_id"], *choice.pairs["rejected_id"]}
    return choice.without({one: "no_usable_pair" for one in choice.rows["trajectory_id"] if one not in members})


def _prompt_sources(choice: Choice) -> pl.DataFrame:
    """The tasks, each with the trajectory that shows how it opens: one that can be played, if there is one."""
    by_task = choice.rows.sort(pl.col("environment").cast(pl.String) == "", "trajectory_id")
    firsts = by_task.unique("task", keep="first", maintain_order=True)
    firsts = firsts.select("task", "split", "trajectory_id", "environment")
    return choice.tasks.join(firsts, on="task").sort("task")


def _prompt_rows(prompts: pl.DataFrame, spool: Spool) -> Iterator[Row]:
    for row in prompts.iter_rows(named=True):
        opening = opening_of(spool.messages(row["trajectory_id"]))
        yield {**row, "messages": orjson.dumps(opening).decode(), **spool.facts(row["trajectory_id"])}


def _roles(choice: Choice, prompts: pl.DataFrame, role: str) -> pl.DataFrame:
    used = {"chosen": choice.pairs["chosen_id"], "rejected": choice.pairs["rejected_id"]}
    if choice.algorithm != "dpo":
        used |= {role: choice.rows["trajectory_id"]}
    used |= {"prompt": prompts["trajectory_id"]}
    parts = [
        pl.DataFrame({"trajectory_id": ids.unique()}).with_columns(role=pl.lit(name)) for name, ids in used.items()
    ]
    return pl.concat(parts).sort("trajectory_id", "role")
