"""An agent in a process of its own, to be killed: records, and prints the id of each trajectory whose block has ended.

The naive variants exist to lose and to double what the recorder does not.
"""

import argparse
import dataclasses
import shutil
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

from rl_pipeline.collection import Outbox, Recorder
from rl_pipeline.collection.outbox import sender
from rl_pipeline.stores.stream import OutgoingMessage

FOR_EVER = 10**9


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def hold_after_publishing() -> None:
    """Stay between the stream's acknowledgement and the removal of the file."""
    publish = sender.Sender._publish

    def publish_and_stay(self: sender.Sender, message: OutgoingMessage) -> None:
        publish(self, message)
        say("PUBLISHED")
        threading.Event().wait()

    sender.Sender._publish = publish_and_stay  # type: ignore[method-assign]


def give_fresh_message_ids() -> None:
    """Naive: every sending is a new message."""
    outgoing = sender.outgoing_message

    def fresh(*arguments: Any) -> OutgoingMessage:
        return dataclasses.replace(outgoing(*arguments), message_id=str(uuid4()))

    sender.outgoing_message = fresh  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("url")
    parser.add_argument("--count", type=int, default=FOR_EVER)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--unfinished", action="store_true", help="stay inside the first block, with its turns written")
    parser.add_argument("--hold-after-publishing", action="store_true")
    parser.add_argument("--fresh-message-ids", action="store_true")
    parser.add_argument("--in-memory", action="store_true", help="naive: what waits is lost with the process")
    options = parser.parse_args()
    if options.hold_after_publishing:
        hold_after_publishing()
    if options.fresh_message_ids:
        give_fresh_message_ids()
    directory = options.directory
    if options.in_memory:
        # A place that no other process knows is as good as this one's memory.
        shutil.copytree(directory, directory := directory.with_name(str(uuid4())))
    outbox = Outbox(directory, options.url, disk_seconds=60)
    writer = outbox._working().writer
    for _ in range(options.count):
        with Recorder(outbox, agent_id="agent", model="model", instructions="go") as trajectory:
            for number in range(options.turns):
                with trajectory.turn() as turn:
                    turn.answer(f"turn {number} " + "x" * 500)
            trajectory.end("success")
            if options.unfinished:
                writer.wait_until_written(60)
                say(trajectory.trajectory_id)
                threading.Event().wait()
        say(trajectory.trajectory_id)
    assert outbox.wait_until_sent(120)
    say("SENT")


if __name__ == "__main__":
    main()
