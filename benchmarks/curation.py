"""How long does it take to choose a dataset, and how much memory?

1,000,000 scored trajectories with documents of about 2 kB are stored in the embedded warehouse: eight attempts at each
task, six domains, sources and users, better and worse ones, and near copies among them. From these a dataset of 10,000
is curated for imitation (SFT), for pairs (DPO) and to play on (RLOO): judged and compared in ClickHouse, chosen,
read, written, held and stored.

- `seconds_1m`: the wall time of the slowest of the three; `cpu_seconds_1m`: the CPU time of the dearest, of this
  process and the warehouse's together, which does not depend on what else the machine does.
- `peak_mb`: the most memory of this process, which curates; `engine_peak_mb`: of the warehouse's process, filling it
  included.
- `same_hash`: 1 if curating again, for a job of another name, gave the same manifest's hash.

With `--quick` there are 50,000, from which 500 are chosen, and the times are scaled.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))  # for its neighbours, when started as a script

from benchmarks.servers import running_front
from rl_pipeline.contracts.training_request import Algorithm, TrainingRequest
from rl_pipeline.curation.curating import CuratedDataset, curate
from rl_pipeline.curation.policy import CurationPolicy
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.migrate import migrate

ALGORITHMS: tuple[Algorithm, ...] = ("sft", "dpo", "rloo")
BATCH = 50_000

# Words depend on the task and on one of four ways to solve it, so that some attempts are copies of each other.
TRAJECTORIES = """
    INSERT INTO trajectories (
        trajectory_id, stream, sequence, stream_time, revision, version, publisher, agent_id, user, task_id, task_type,
        group_id, domain, task_status, started_at, ended_at, turns, agents, tools, document
    )
    WITH
        intDiv(number, 8) AS task, cityHash64(number) AS lot, lot % 4 AS way, lot % 10 < 6 AS succeeded,
        ['coding', 'research', 'general', 'debugging', 'writing', 'data_analysis'] AS domains,
        arrayMap(i -> ['search', 'read', 'write', 'test'][1 + cityHash64(task, way, i) % 4], range(3)) AS called,
        arrayMap(i -> concat('word', toString(cityHash64(task, way, i) % 5000)), range(60)) AS words,
        concat('Please do task ', toString(task), ' with ', arrayStringConcat(arrayMap(
            i -> concat('thing', toString(cityHash64(task, i) % 5000)), range(12)
        ), ' ')) AS request,
        arrayMap(i -> concat(
            '{"turn_id":', toString(i + 1), ',"timestamp":"2026-03-01T00:00:00Z","observation":{"type":"',
            if(i = 0, 'user_message', 'tool_result'), '","content":"',
            if(i = 0, request, arrayStringConcat(arraySlice(words, 5 * i, 20), ' ')),
            '"},"action":{"type":"tool_call","tool_name":"', called[i + 1], '","tool_args":{"query":"',
            arrayStringConcat(arraySlice(words, 1 + 7 * i, 8), ' '), '"},"raw_response":null},',
            '"result":{"success":true,"output":"', arrayStringConcat(arraySlice(words, 5 + 5 * i, 20), ' '),
            '","error":null}}'
        ), range(3)) AS turns
    SELECT
        toString(reinterpretAsUUID(sipHash128(number))), 'RL_TRAJECTORIES', number + 1,
        {now:DateTime64(3, 'UTC')} - toIntervalSecond(number), 1, bitShiftLeft(toUInt64(1), 41) - 2 - number,
        concat('publisher-', toString(lot % 7)), 'main',
        if(lot % 3 = 0, '', concat('[REDACTED:USER:', lower(leftPad(hex(lot % 2000), 12, '0')), ']')),
        concat('task-', toString(task)), concat('type-', toString(task % 40)), concat('task-', toString(task)),
        domains[1 + if(task % 2 = 0, 0, task % 6)], if(succeeded, 'success', 'failed'),
        {now:DateTime64(3, 'UTC')}, {now:DateTime64(3, 'UTC')}, 4, 1, called,
        concat(
            '{"trajectory_id":"', toString(number), '","agent_id":"main","turns":[', arrayStringConcat(turns, ','),
            ',{"turn_id":4,"timestamp":"2026-03-01T00:00:09Z","observation":{"type":"tool_result","content":"ok"},',
            '"action":{"type":"response","raw_response":"', arrayStringConcat(words, ' '),
            if(succeeded, ' done', ' gave up'), '"},"result":{"success":true,"output":null,"error":null}}],',
            '"task_context":{"task_id":"task-', toString(task), '","instructions":"', request,
            '"},"metadata":{"model":"m"}}'
        )
    FROM numbers({first:UInt64}, {count:UInt64})
"""
REWARDS = """
    INSERT INTO rewards (
        trajectory_id, stream, sequence, stream_time, task_id, task_type, revision, raw_total, total, configuration,
        reward_id, scored_at
    )
    SELECT
        trajectory_id, stream, sequence, stream_time, task_id, task_type, 0,
        if(task_status = 'success', 0.55, 0.1) + 0.4 * (cityHash64(sequence, 1) % 1000) / 1000, 0.5, 'c1',
        toString(reinterpretAsUUID(sipHash128(trajectory_id))), {now:DateTime64(3, 'UTC')}
    FROM trajectories WHERE sequence > {first:UInt64} AND sequence <= {first:UInt64} + {count:UInt64}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the trajectories, under a minute")
    quick = parser.parse_args().quick
    count = 50_000 if quick else 1_000_000
    now = datetime.now(UTC)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_front(Path(scratch) / "warehouse") as url,
        closing(ClickHouseWarehouse.connect(url, "curation")) as warehouse,
    ):
        objects = DiskObjects(Path(scratch) / "objects")
        bytes_each = fill(warehouse, count, now)
        print(f"{count:,} trajectories of {bytes_each:,.0f} bytes each into {count // 100:,}{scaled(quick=quick)}\n")
        print(f"{'':<8}{'seconds':>10}{'CPU':>8}{'trajectories':>15}{'tasks':>9}{'pairs':>9}{'copies left out':>18}")
        seconds, cpu_seconds, hashes = [], [], []
        for algorithm in ALGORITHMS:
            cpu = cpu_time()
            took, dataset = timed(warehouse, objects, algorithm, algorithm, count=count, now=now)
            check(dataset, count)
            seconds.append(took * 1_000_000 / count)
            cpu_seconds.append((cpu_time() - cpu) * 1_000_000 / count)
            hashes.append(dataset.manifest_hash)
            kept, tasks, pairs = dataset.report.kept, dataset.report.tasks, dataset.report.pairs
            copies = dataset.report.left_out["duplicate"]
            times = f"{seconds[-1]:>10.1f}{cpu_seconds[-1]:>8.1f}"
            print(f"{algorithm:<8}{times}{kept:>15,}{tasks:>9,}{pairs:>9,}{copies:>18,}")
        _, again = timed(warehouse, objects, ALGORITHMS[-1], "again", count=count, now=now)
        engine = engine_peak_mb()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    same = again.manifest_hash == hashes[-1]
    print(f"\npeak of this process {own:,.0f} MB, of the warehouse's {engine:,.0f} MB")
    print(f"curated again, under another name: {'the same' if same else 'ANOTHER'} hash\n")
    figures = {
        "seconds_1m": max(seconds),
        "cpu_seconds_1m": max(cpu_seconds),
        "peak_mb": own,
        "engine_peak_mb": engine,
        "same_hash": float(same),
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def fill(warehouse: ClickHouseWarehouse, count: int, now: datetime) -> float:
    """Store the trajectories and their rewards; the mean size of a document."""
    migrate(warehouse)
    for first in range(0, count, BATCH):
        parameters = {"first": first, "count": min(BATCH, count - first), "now": now}
        warehouse.execute(TRAJECTORIES, parameters)
        warehouse.execute(REWARDS, parameters)
    return float(warehouse.query("SELECT avg(length(document)) AS size FROM trajectories")["size"][0])


def timed(
    warehouse: ClickHouseWarehouse, objects: DiskObjects, algorithm: Algorithm, name: str, *, count: int, now: datetime
) -> tuple[float, CuratedDataset]:
    """Curate a hundredth of the trajectories, and say how many seconds it took."""
    request = TrainingRequest.model_validate(
        {
            "training_job_id": name,
            "timestamp": now,
            "requester": "benchmark",
            "trigger_reason": "manual",
            "training_config": {"dataset": {"source": "clickhouse", "sample_size": count // 100}},
        }
    )
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as work:
        dataset = curate(
            warehouse,
            objects,
            job_id=name,
            request=request,
            accepted_at=now,
            algorithm=algorithm,
            revision=1,
            now=now,
            watermark=count,
            policy=CurationPolicy(),
            work=Path(work),
        )
    return time.perf_counter() - began, dataset


def check(dataset: CuratedDataset, count: int) -> None:
    """A dataset that is not what was asked for took no time that means anything."""
    report = dataset.report
    accounted = report.kept + sum(report.left_out.values()) == report.offered == count
    if not accounted or report.kept != count // 100 or report.leakage.total:
        raise SystemExit(f"the dataset is wrong, and the figures would mean nothing: {report}")


def cpu_time() -> float:
    """CPU seconds that this process and those that it has started have used."""
    children = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(used.user + used.system for used in children)


def engine_peak_mb() -> float:
    """The most memory that the processes which this one has started have had."""
    peaks = []
    for child in psutil.Process().children(recursive=True):
        status = Path(f"/proc/{child.pid}/status").read_text()
        peaks += [int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")]
    return max(peaks, default=0.0)


def scaled(*, quick: bool) -> str:
    return "; seconds are scaled to 1,000,000" if quick else ""


if __name__ == "__main__":
    main()
