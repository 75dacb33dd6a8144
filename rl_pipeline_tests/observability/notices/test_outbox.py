"""Notices leave by every way, once each if nothing goes wrong, and are never lost if something does."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rl_pipeline.observability.notices.outbox import KEPT, NotDelivered, Notice, Outbox, Way
from rl_pipeline.observability.notices.ways import to_file, to_nats, to_webhook
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream

NOW = datetime(2026, 3, 10, 8, tzinfo=UTC)


class Hook:
    """A real HTTP server that answers as it is told, and remembers what it was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.heard: list[tuple[str, dict[str, object]]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.heard.append((self.headers["Idempotency-Key"], body))
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/a-token"


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    thread = threading.Thread(target=hook.server.serve_forever)
    thread.start()
    yield hook
    hook.server.shutdown()
    thread.join()
    hook.server.server_close()


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(DiskObjects(tmp_path / "objects"))


def a_notice(number: int = 1, *ways: str) -> Notice:
    return Notice(f"alert-{number}", "agent.rl.alert.v1", {"text": f"number {number}"}, ways or ("file",), NOW)


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def refuse(notice: Notice) -> None:
    raise NotDelivered(f"not {notice.id}")


def test_a_notice_is_added_once_for_its_id_and_stays_known_when_it_was_told(outbox: Outbox, tmp_path: Path) -> None:
    assert outbox.add(a_notice())
    assert not outbox.add(a_notice())
    assert outbox.deliver({"file": to_file(tmp_path / "alerts.jsonl")}, NOW) == []
    assert not outbox.add(a_notice())
    assert outbox.deliver({"file": to_file(tmp_path / "alerts.jsonl")}, NOW) == []
    assert (tmp_path / "alerts.jsonl").read_text() == '{"text": "number 1"}\n'


def test_of_many_who_add_the_same_one_succeeds(outbox: Outbox) -> None:
    won: list[bool] = []
    threads = [threading.Thread(target=lambda: won.append(outbox.add(a_notice()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_a_way_that_works_is_not_held_up_by_one_that_does_not_and_is_not_used_twice(
    outbox: Outbox, tmp_path: Path
) -> None:
    file = tmp_path / "alerts.jsonl"
    outbox.add(a_notice(1, "nats", "file"))
    ways: dict[str, Way] = {"file": to_file(file), "nats": refuse}
    [left] = outbox.deliver(ways, NOW)
    assert (left.ways, left.attempts, dict(left.troubles)) == (("nats",), 1, {"nats": "not alert-1"})
    assert len(file.read_text().splitlines()) == 1
    ways["nats"] = lambda _: None
    assert outbox.deliver(ways, NOW + timedelta(seconds=29)) == [left], "it is not tried before its time"
    assert outbox.deliver(ways, NOW + timedelta(seconds=30)) == []
    assert len(file.read_text().splitlines()) == 1


def test_pauses_grow_to_an_hour_and_it_is_never_given_up(outbox: Outbox) -> None:
    outbox.add(a_notice(1, "nats"))
    now, pauses = NOW, []
    for _ in range(12):
        [left] = outbox.deliver({"nats": refuse}, now)
        assert left.not_before is not None
        pauses.append((left.not_before - now).total_seconds())
        now = left.not_before
    assert pauses[:4] == [30, 60, 120, 240]
    assert pauses[-3:] == [3600, 3600, 3600]


def test_who_dies_after_telling_tells_again_and_loses_nothing(tmp_path: Path) -> None:
    outbox = Outbox(DiskObjects(tmp_path / "objects"))
    outbox.add(a_notice())
    told: list[str] = []
    ways: dict[str, Way] = {"file": lambda notice: told.append(notice.id)}
    with pytest.MonkeyPatch.context() as dying:
        dying.setattr(DiskObjects, "put", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            outbox.deliver(ways, NOW)
    assert outbox.deliver(ways, NOW) == []
    assert told == ["alert-1", "alert-1"]


def test_a_way_that_was_taken_away_is_not_waited_for(outbox: Outbox) -> None:
    outbox.add(a_notice(1, "webhook"))
    assert outbox.deliver({}, NOW) == []
    assert outbox.waiting() == []


def test_what_was_told_is_forgotten_after_its_time_and_what_waits_never(outbox: Outbox) -> None:
    outbox.add(a_notice(1, "file"))
    outbox.add(a_notice(2, "nats"))
    outbox.deliver({"file": lambda _: None, "nats": refuse}, NOW)
    now = datetime.now(UTC)
    assert outbox.forget(now + KEPT - timedelta(minutes=1)) == 0
    assert outbox.forget(now + KEPT + timedelta(minutes=1)) == 1
    assert [notice.id for notice in outbox.waiting()] == ["alert-2"]


def test_a_webhook_gets_the_alert_with_its_id_and_what_it_refuses_is_not_delivered(hook: Hook) -> None:
    deliver = to_webhook(hook.url)
    deliver(a_notice())
    assert hook.heard == [("alert-1", {"text": "number 1"})]
    hook.status = 503
    with pytest.raises(NotDelivered, match="answered 503") as refused:
        deliver(a_notice())
    assert "a-token" not in str(refused.value)


def test_a_webhook_that_is_not_there_is_told_without_its_token() -> None:
    with pytest.raises(NotDelivered, match=r"127\.0\.0\.1 does not answer") as trouble:
        to_webhook("http://127.0.0.1:1/a-token")(a_notice())
    assert "a-token" not in str(trouble.value)


def test_a_line_that_was_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    file = tmp_path / "below" / "alerts.jsonl"
    to_file(file)(a_notice(1))
    with file.open("ab") as cut:
        cut.write(b'{"text": "num')
    to_file(file)(a_notice(2))
    assert [line for line in file.read_text().splitlines() if line.endswith("}")] == [
        '{"text": "number 1"}',
        '{"text": "number 2"}',
    ]


def test_nats_stores_a_notice_once_however_often_it_is_published(stream: JetStream) -> None:
    deliver = to_nats(lambda: stream)
    deliver(a_notice())
    deliver(a_notice())
    assert stream.state("RL_REPORTS").messages == 1
