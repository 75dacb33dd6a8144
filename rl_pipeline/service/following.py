"""What the training stream says of jobs beyond their tables: how far each is, and requests that were not taken in yet.

The stream itself is the memory: it is read from its beginning when the service starts, and followed from there.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from rl_pipeline.contracts import ContractError, TrainingRequest, TrainingStatus, parse_message
from rl_pipeline.errors import PipelineError
from rl_pipeline.service.connections import ServiceStream
from rl_pipeline.stores.stream import StoredMessage
from rl_pipeline.training.jobs.refusals import TRAINING_STREAM
from rl_pipeline.training.jobs.rows import REQUEST_SUBJECT
from rl_pipeline.training.jobs.statuses import STATUS_SUBJECT

_BATCH = 500
_MOST_JOBS = 10_000
_SECONDS_BETWEEN_LOOKS = 1.0

_log = logging.getLogger(__name__)


class TrainingNews:
    """The newest status of each job, and the requests that were made. Threads may share it."""

    def __init__(self) -> None:
        self._statuses: OrderedDict[str, TrainingStatus] = OrderedDict()
        self._requests: OrderedDict[str, TrainingRequest] = OrderedDict()
        self._lock = threading.Lock()

    def status(self, job_id: str) -> TrainingStatus | None:
        """The last that was told of a job."""
        return self._statuses.get(job_id)

    def request(self, job_id: str) -> TrainingRequest | None:
        """The first request under an id."""
        return self._requests.get(job_id)

    def hear(self, message: TrainingStatus | TrainingRequest) -> None:
        """Remember a message, and of too many jobs the newest."""
        with self._lock:
            if isinstance(message, TrainingRequest):
                self._requests.setdefault(message.training_job_id, message)
            else:
                known = self._statuses.get(message.training_job_id)
                if known is None or known.timestamp <= message.timestamp:
                    self._statuses[message.training_job_id] = message
                    self._statuses.move_to_end(message.training_job_id)
            for remembered in (self._statuses, self._requests):
                while len(remembered) > _MOST_JOBS:
                    remembered.popitem(last=False)


class Follower:
    """Reads the training stream on a thread of its own, from its first message on, for as long as the service runs."""

    def __init__(
        self,
        open_stream: Callable[[], ServiceStream],
        news: TrainingNews,
        on_connected: Callable[[ServiceStream], None],
    ) -> None:
        """`on_connected` is called once for each connection, before anything is read from it."""
        self._open = open_stream
        self._news = news
        self._on_connected = on_connected
        self._connected: ServiceStream | None = None
        self._read_up_to = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="training news", daemon=True)
        self.trouble = ""
        """Why the stream cannot be followed now; empty while it is."""

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more."""
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self._look()
                self.trouble = ""
            except PipelineError as away:
                if not self.trouble:
                    _log.warning("the training stream cannot be followed: %s", away)
                self.trouble = str(away)
            self._stop.wait(_SECONDS_BETWEEN_LOOKS)

    def _look(self) -> None:
        stream = self._open()
        if stream is not self._connected:
            self._on_connected(stream)
            self._connected = stream
        last = stream.state(TRAINING_STREAM).last_sequence
        if last < self._read_up_to:  # the stream was made anew
            self._read_up_to = 0
        for batch in stream.read(TRAINING_STREAM, self._read_up_to + 1, last, _BATCH):
            for message in batch:
                self._hear(message)
                self._read_up_to = message.sequence

    def _hear(self, message: StoredMessage) -> None:
        if message.subject not in (STATUS_SUBJECT, REQUEST_SUBJECT):
            return
        try:
            parsed = parse_message(message.subject, message.data)
        except ContractError:
            return  # the sensor of requests makes a dead letter of it, and says so
        if isinstance(parsed, TrainingStatus | TrainingRequest):
            self._news.hear(parsed)
