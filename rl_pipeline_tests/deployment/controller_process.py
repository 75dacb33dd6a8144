"""A controller in a process of its own, for tests that kill it.

Prints READY when it is about to tick (a kill during imports would prove nothing), `AT <point>` before it waits to be
killed at a named point, and DONE when nothing is left to do. Models whose numbers are even are bad.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rl_pipeline.deployment.announcing import ServingPlace, announcer
from rl_pipeline.deployment.audit import WarehouseAudit
from rl_pipeline.deployment.controller import Controller
from rl_pipeline.deployment.desk import Desk
from rl_pipeline.deployment.judging import Judgement, Limits, Mode
from rl_pipeline.deployment.outcomes import windows_of
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.deployment.state import Phase, Rollout
from rl_pipeline.deployment.windows import Window
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline_tests.deployment.kept_gateway import KeptGateway

PLACE = ServingPlace("tensorzero", "http://127.0.0.1:3000/v1/chat/completions")
EFFECTS = {"traffic": ["fence", "apply"], "states": ["swap"], "audit": ["add", "mark_announced"], "announce": ["say"]}
POINTS = [f"{when} {name}" for names in EFFECTS.values() for name in names for when in ("before", "after")]
MOST_TICKS = 40


class Pausing:
    """A port that waits to be killed before or after one of its methods."""

    def __init__(self, port: object, names: Sequence[str], reached: Callable[[str], None]) -> None:
        self._port, self._names, self._reached = port, names, reached

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if name not in self._names:
            return method

        def paused(*arguments: Any, **named: Any) -> Any:
            self._reached(f"before {name}")
            result = method(*arguments, **named)
            self._reached(f"after {name}")
            return result

        return paused


class Saying:
    """The announcer, under a name of its own."""

    def __init__(self, stream: JetStream) -> None:
        self.say = announcer(stream, PLACE)


def judge(
    rollout: Rollout, _phase: Phase, _windows: Sequence[Window], _now: datetime, *, mode: Mode, limits: Limits
) -> Judgement:
    """At once: a good model advances, a bad one goes."""
    if int(rollout.candidate.rpartition("v")[2]) % 2 == 0:
        return Judgement("roll_back", "high_error_rate", f"{mode}: above {limits.error_rate}", {"errors": 9})
    return Judgement("advance", "time_and_samples", "nothing against it")


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--nats", "--clickhouse", "--database"):
        parser.add_argument(name, required=True)
    parser.add_argument("--gateway", type=Path, required=True)
    parser.add_argument("--wait-at")
    given = parser.parse_args()

    def reached(point: str) -> None:
        if point == given.wait_at:
            tell(f"AT {point}")
            time.sleep(600)

    with (
        JetStream.connect(given.nats) as stream,
        closing(ClickHouseWarehouse.connect(given.clickhouse, given.database)) as warehouse,
    ):
        ports: dict[str, Any] = {
            "traffic": KeptGateway(given.gateway),
            "states": JetStreamDesiredStates(stream),
            "audit": WarehouseAudit(warehouse),
            "announce": Saying(stream),
        }
        paused = {name: Pausing(port, EFFECTS[name], reached) for name, port in ports.items()}
        desk: Any = Desk(paused["states"], paused["traffic"], paused["audit"], paused["announce"].say)  # type: ignore[arg-type]
        controller = Controller(
            desk, Releases(warehouse), lambda *asked: windows_of(warehouse, *asked, session_keys=()), judge
        )
        now = datetime.now(UTC)
        tell("READY")
        for number in range(MOST_TICKS):
            tick = controller.tick(now + timedelta(seconds=number))
            if not tick.changes and not tick.pending:
                break
        tell("DONE")


if __name__ == "__main__":
    main()
