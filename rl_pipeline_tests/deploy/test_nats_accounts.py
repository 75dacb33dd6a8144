"""Every service account of deploy/nats can do its work and nothing else, on a real server with that configuration."""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial

import nats
import pytest
from nats.aio.client import Client

from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.stream import OutgoingMessage, PublishIncomplete, PublishRefused, StreamDenied
from rl_pipeline.stores.topology import BUCKETS, STREAMS, bootstrap
from rl_pipeline.training.jobs.advancing import import_lease
from rl_pipeline_tests.deploy.accounts import CONFIGURATION, USERS, connect, password
from rl_pipeline_tests.waiting import wait_until

CONSUMERS = [
    *((spec.name, consumer.name) for spec in STREAMS for consumer in spec.consumers),
    # Earlier versions made it: a deployment may still have it, and nobody is to use it.
    ("RL_FEEDBACK", "feedback"),
]

# What a message may be published to: the pipeline's subjects, somebody else's, replies, and the server's own.
MESSAGES = [
    *("agent.rl.trajectory.v1", "agent.rl.trajectory.v2", "agent.rl.reward.v1", "agent.rl.feedback.v1"),
    *("agent.rl.training.request.v1", "agent.rl.training.status.v1", "agent.rl.training.cancel.v1"),
    *("agent.rl.training.status.request", "agent.rl.model.deployed.v1", "agent.rl.model.other.v1"),
    *("agent.rl.serving.outcome.v1", "agent.rl.dlq.trajectory", "agent.other", "other.subject"),
    *("agent.rl.dlq.RL_TRAINING.1.0", "$KV.RL_LEASES.training", "$KV.RL_LEASES.training-requests"),
    *("agent.rl.report.v1", "agent.rl.alert.v1"),
    *("agent.rl.dlq.RL_SERVING.1.0", "$KV.RL_LEASES.releases", "$KV.RL_DEPLOYMENT.state"),
    *(f"$KV.RL_LEASES.{import_lease('job')}", "agent.rl.dlq.IMPORTS.1.0"),
    *("_INBOX.x", "$KV.bucket.key", "$SYS.REQ.SERVER.PING", "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.x.y"),
    *(f"_INBOX_{user}.x" for user in USERS),
]
OF_A_STREAM = [
    *("STREAM.INFO", "STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.SNAPSHOT"),
    *("STREAM.RESTORE", "STREAM.MSG.GET", "STREAM.MSG.DELETE", "STREAM.LEADER.STEPDOWN", "STREAM.PEER.REMOVE"),
    *("DIRECT.GET", "CONSUMER.CREATE", "CONSUMER.LIST", "CONSUMER.NAMES"),
]
OF_A_CONSUMER = ["CREATE", "DURABLE.CREATE", "DELETE", "INFO", "MSG.NEXT", "PAUSE", "RESET", "UNPIN", "LEADER.STEPDOWN"]
REQUESTS = [
    *("$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.ACCOUNT.PURGE.RL"),
    *(f"$JS.API.{operation}.{spec.name}" for operation in OF_A_STREAM for spec in (*STREAMS, *BUCKETS)),
    *(f"$JS.API.{operation}.OTHER" for operation in OF_A_STREAM),
    *(f"$JS.API.CONSUMER.{operation}.{stream}.{name}" for operation in OF_A_CONSUMER for stream, name in CONSUMERS),
    *(f"$JS.API.CONSUMER.{operation}.RL_TRAJECTORIES.own" for operation in OF_A_CONSUMER),
    *(f"$JS.API.CONSUMER.CREATE.{stream}.{name}.agent.rl.x" for stream, name in CONSUMERS),
    *(f"$JS.API.DIRECT.GET.{spec.name}.{spec.subjects[0]}" for spec in STREAMS),
    *(f"$JS.ACK.{stream}.{name}.1.1.1.1.1" for stream, name in (*CONSUMERS, ("RL_TRAJECTORIES", "own"))),
]


def with_neighbours(subjects: list[str]) -> list[str]:
    """The subjects, and for each those that differ in one token or go on: what a wildcard would let through."""
    found = dict.fromkeys(subjects)
    for subject in subjects:
        tokens = subject.split(".")
        for index in range(1, len(tokens)):
            found[".".join([*tokens[:index], "neighbour", *tokens[index + 1 :]])] = None
        found[f"{subject}.more"] = None
    return list(found)


def reading(stream: str) -> list[str]:
    return [f"$JS.API.{operation}.{stream}" for operation in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")]


def consuming(stream: str, consumer: str) -> list[str]:
    requests = [f"$JS.API.CONSUMER.{operation}.{stream}.{consumer}" for operation in ("INFO", "MSG.NEXT")]
    return [*requests, f"$JS.API.STREAM.INFO.{stream}", f"$JS.ACK.{stream}.{consumer}.>"]


MAY_PUBLISH: dict[str, list[str]] = {
    "agent": ["agent.rl.trajectory.v1", "agent.rl.feedback.v1"],
    "ingest": [
        *("agent.rl.dlq.>", "agent.rl.reward.v1"),
        *reading("RL_DLQ"),
        *reading("RL_REWARDS"),
        *reading("RL_TRAJECTORIES"),
        *reading("RL_FEEDBACK"),
    ],
    "trainer": [
        *("agent.rl.reward.v1", "agent.rl.training.request.v1"),
        *("agent.rl.training.status.v1", "agent.rl.training.cancel.v1", "agent.rl.dlq.RL_TRAINING.>"),
        *("agent.rl.report.v1", "agent.rl.alert.v1"),
        "agent.rl.training.status.request",
        *consuming("RL_TRAINING", "training_requests"),
        *consuming("RL_TRAINING", "training_cancellations"),
        *("$JS.API.STREAM.INFO.RL_TRAJECTORIES", "$JS.API.STREAM.MSG.GET.KV_RL_LEASES"),
        *("$KV.RL_LEASES.training", "$KV.RL_LEASES.training-requests"),
    ],
    "gateway": ["agent.rl.serving.outcome.v1", "$JS.API.STREAM.MSG.GET.KV_RL_DEPLOYMENT"],
    "gateway_admin": [
        *("agent.rl.serving.outcome.v1", "agent.rl.model.deployed.v1", "$KV.RL_DEPLOYMENT.state"),
        *reading("KV_RL_DEPLOYMENT"),
    ],
    "deployer": [
        *("agent.rl.model.deployed.v1", "agent.rl.dlq.RL_SERVING.>", "$KV.RL_DEPLOYMENT.state"),
        *consuming("RL_SERVING", "serving_outcomes"),
        *reading("KV_RL_DEPLOYMENT"),
        *("$JS.API.STREAM.MSG.GET.KV_RL_LEASES", "$KV.RL_LEASES.releases"),
    ],
    "service": [
        *("agent.rl.trajectory.v1", "agent.rl.feedback.v1", "agent.rl.model.deployed.v1", "$KV.RL_DEPLOYMENT.state"),
        *("agent.rl.training.request.v1", "agent.rl.training.cancel.v1"),
        *reading("RL_TRAINING"),
        *reading("KV_RL_DEPLOYMENT"),
    ],
    "observer": [
        *("$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.*"),
        *("$JS.API.CONSUMER.NAMES.*", "$JS.API.CONSUMER.LIST.*", "$JS.API.CONSUMER.INFO.*.*"),
    ],
}
HEARING = [
    *(">", "*.>", "agent.>", "agent.rl.>", "agent.rl.*.v1", "_INBOX.>", "$JS.>", "$KV.>", "$SYS.>", "other"),
    *(f"_INBOX_{user}.>" for user in USERS),
    *(subject for subject in MESSAGES if subject.startswith("agent.")),
]
QUEUE_GROUPS = ["", "rl-trainers", "rl-workers", "rl-service", "other-group"]
NEW_MODELS = {("agent.rl.model.deployed.v1", group) for group in QUEUE_GROUPS}
MAY_SUBSCRIBE: dict[str, set[tuple[str, str]]] = {
    "agent": NEW_MODELS,
    "ingest": set(),
    "trainer": {
        *(("agent.rl.trajectory.v1", group) for group in ("rl-trainers", "rl-workers")),
        *(
            (f"agent.rl.{subject}.v1", "rl-trainers")
            for subject in ("training.status", "model.deployed", "report", "alert")
        ),
    },
    "gateway": NEW_MODELS,
    "gateway_admin": NEW_MODELS,
    "deployer": set(),
    "service": {("agent.rl.training.status.request", "rl-service")},
    "observer": set(),
}
# The code location's one login: all three of them, and imports of files.
PARTS = ("ingest", "trainer", "deployer")
OF_IMPORTS = ["agent.rl.trajectory.v1", "$KV.RL_LEASES.import.*"]
MAY_PUBLISH["pipeline"] = [*(subject for part in PARTS for subject in MAY_PUBLISH[part]), *OF_IMPORTS]
MAY_SUBSCRIBE["pipeline"] = {heard for part in PARTS for heard in MAY_SUBSCRIBE[part]}
SERVICES = sorted(MAY_PUBLISH)


def nats_pattern(subject: str) -> str:
    """The regular expression of a NATS subject with wildcards."""
    return re.escape(subject).replace(r"\*", "[^.]+").replace(">", ".+")


def violations(url: str, user: str, probe: Callable[[Client], Awaitable[None]]) -> set[tuple[str, str]]:
    """The subjects, with their queue groups, that the server denies in the course of a probe."""
    denied: set[tuple[str, str]] = set()

    async def on_error(error: Exception) -> None:
        found = re.search(r'violation for \w+ to "([^"]+)"(?: using queue "([^"]+)")?', str(error))
        assert found, f"not a denial: {error}"
        denied.add((found[1], found[2] or ""))

    async def run() -> None:
        client = await nats.connect(url, user=user, password=password(user), error_cb=on_error)
        await probe(client)
        # The first PING overtakes what nats-py has buffered, the second does not.
        await client.flush()
        await client.flush()
        await client.close()

    asyncio.run(run())
    return denied


@pytest.mark.parametrize("user", SERVICES)
def test_an_account_publishes_and_requests_exactly_what_its_work_needs(url: str, user: str) -> None:
    async def publish_everywhere(client: Client) -> None:
        for subject in probes:
            await client.publish(subject, b"")

    probes = with_neighbours([*MESSAGES, *REQUESTS])
    denied = {subject for subject, _ in violations(url, user, publish_everywhere)}
    expected = [re.compile(nats_pattern(allowed)) for allowed in MAY_PUBLISH[user]]
    assert {subject for subject in probes if subject.lower() not in denied} == {
        subject for subject in probes if any(pattern.fullmatch(subject) for pattern in expected)
    }


@pytest.mark.parametrize("user", SERVICES)
def test_an_account_hears_exactly_what_its_work_needs(url: str, user: str) -> None:
    async def subscribe_everywhere(client: Client) -> None:
        for subject, group in itertools.product(HEARING, QUEUE_GROUPS):
            await client.subscribe(subject, queue=group)

    denied = violations(url, user, subscribe_everywhere)
    own_inbox = {(f"_INBOX_{user}.>", group) for group in QUEUE_GROUPS}
    allowed = {
        probe for probe in itertools.product(HEARING, QUEUE_GROUPS) if (probe[0].lower(), probe[1]) not in denied
    }
    assert allowed == MAY_SUBSCRIBE[user] | own_inbox


def test_the_tables_name_every_user_of_the_configuration() -> None:
    text = (CONFIGURATION.parent / "accounts.conf").read_text()
    assert set(re.findall(r"user: (\w+)", text)) == set(USERS) == {*SERVICES, "admin"}


def granted(user: str) -> tuple[set[str], set[str]]:
    """What the configuration grants a user: the subjects to publish to, and those to hear but for its inbox."""
    text = (CONFIGURATION.parent / "accounts.conf").read_text()
    permissions = text.partition(f"user: {user},")[2].partition("user: ")[0]
    publishing, _, hearing = permissions.partition("subscribe {")
    publishing, hearing = (re.sub(r"#.*", "", part) for part in (publishing, hearing))
    return set(re.findall(r'"([^"]+)"', publishing)), set(re.findall(r'"([^"]+)"', hearing)) - {f"_INBOX_{user}.>"}


def test_the_pipeline_is_granted_what_its_parts_are_and_imports_of_files() -> None:
    publishing, hearing = zip(*map(granted, PARTS), strict=True)
    assert min(map(len, publishing)) > 0
    # The letters of every stream include those of training and of serving.
    letters = {"agent.rl.dlq.RL_TRAINING.>", "agent.rl.dlq.RL_SERVING.>"}
    assert granted("pipeline") == ({*OF_IMPORTS}.union(*publishing) - letters, set().union(*hearing))


def test_the_pipeline_does_the_work_of_ingest_and_trainer_over_one_connection(url: str) -> None:
    with connect(url, "pipeline") as pipeline:
        imported = pipeline.publish_many([OutgoingMessage("agent.rl.trajectory.v1", b"imported", "imported-1")])
        assert pipeline.get("RL_TRAJECTORIES", imported[0].sequence).data == b"imported"
        pipeline.publish("agent.rl.training.request.v1", b"asked by the pipeline", "pipeline-1")
        # The consumer hears of it a moment after the stream.
        wait_until(lambda: pipeline.request("CONSUMER.INFO.RL_TRAINING.training_requests")["num_pending"] > 0)
        assert settle_all(pipeline, "RL_TRAINING", "training_requests")[-1] == b"asked by the pipeline"
        letter = OutgoingMessage("agent.rl.dlq.RL_TRAINING.9.0", b"refused", "RL_TRAINING.9.0", once_per_subject=True)
        assert [pipeline.publish_many([letter])[0].duplicate for _ in range(2)] == [False, True]
        assert pipeline.last_on_subject("RL_DLQ", letter.subject).data == b"refused"
        leases = JetStreamLeases(pipeline)
        for name in ("training", import_lease("job.1:2")):
            lease = leases.acquire(name, "pipeline", 60)
            assert lease is not None
            assert leases.holder(name) == "pipeline"
            leases.release(leases.renew(lease))


def test_the_pipeline_neither_purges_nor_deletes_nor_creates_anything(url: str) -> None:
    with connect(url, "admin") as admin, connect(url, "pipeline") as pipeline:
        kept = pipeline.publish("agent.rl.trajectory.v1", b"kept", "kept-1").sequence
        operations = ("PURGE", "DELETE", "MSG.DELETE", "CREATE", "UPDATE")
        names = [spec.name for spec in (*STREAMS, *BUCKETS)]
        requests = [f"STREAM.{operation}.{name}" for operation in operations for name in (*names, "OTHER")]
        for request in (*requests, "CONSUMER.CREATE.RL_TRAJECTORIES.own"):
            with pytest.raises(StreamDenied, match=r"this account may not .* use the account that may"):
                pipeline.request(request, {"name": "OTHER", "subjects": ["other"], "seq": kept})
        assert admin.get("RL_TRAJECTORIES", kept).data == b"kept"
        assert sorted(admin.request("STREAM.NAMES")["streams"]) == sorted(names)


def test_each_account_does_its_work(url: str) -> None:
    with connect(url, "agent") as agent:
        trajectory = agent.publish("agent.rl.trajectory.v1", b"done", "trajectory-1")
        assert agent.publish("agent.rl.trajectory.v1", b"done", "trajectory-1").duplicate
        agent.publish_many(OutgoingMessage("agent.rl.feedback.v1", b"well done", f"feedback-{n}") for n in range(3))
    with connect(url, "ingest") as ingest:
        sequence = trajectory.sequence
        assert ingest.state("RL_TRAJECTORIES").last_sequence >= sequence
        (batch,) = ingest.read("RL_TRAJECTORIES", sequence, sequence, 10)
        assert batch[0] == ingest.get("RL_TRAJECTORIES", sequence)
        assert ingest.gaps("RL_TRAJECTORIES", 1, sequence) == []
        (feedback,) = ingest.read("RL_FEEDBACK", 1, ingest.state("RL_FEEDBACK").last_sequence, 1000)
        assert feedback[-1].data == ingest.get("RL_FEEDBACK", feedback[-1].sequence).data == b"well done"
        reward = ingest.publish("agent.rl.reward.v1", b"worth", "reward-1").sequence
        (rewards,) = ingest.read("RL_REWARDS", reward, ingest.state("RL_REWARDS").last_sequence, 10)
        assert rewards[0] == ingest.get("RL_REWARDS", reward)
        ingest.publish("agent.rl.dlq.RL_TRAJECTORIES.1", b"refused", "dlq-1")
        assert ingest.last_on_subject("RL_DLQ", "agent.rl.dlq.RL_TRAJECTORIES.1").data == b"refused"
    with connect(url, "trainer") as trainer:
        for subject in ("reward.v1", "training.request.v1", "training.status.v1", "training.cancel.v1"):
            trainer.publish(f"agent.rl.{subject}", b"work", f"{subject}-1")
        assert settle_all(trainer, "RL_TRAINING", "training_requests")[-1] == b"work"
        assert settle_all(trainer, "RL_TRAINING", "training_cancellations")[-1] == b"work"
        assert trainer.state("RL_TRAJECTORIES").last_sequence >= sequence
        letter = OutgoingMessage("agent.rl.dlq.RL_TRAINING.2.0", b"refused", "RL_TRAINING.2.0", once_per_subject=True)
        assert [trainer.publish_many([letter])[0].duplicate for _ in range(2)] == [False, True]
        leases = JetStreamLeases(trainer)
        for name in ("training", "training-requests"):
            lease = leases.acquire(name, "trainer", 60)
            assert lease is not None
            leases.release(leases.renew(lease))
            assert leases.holder(name) is None
    with connect(url, "gateway") as gateway:
        gateway.publish("agent.rl.serving.outcome.v1", b"served", "outcome-1")
    for user in ("deployer", "pipeline"):
        with connect(url, user) as deployer:
            rolls_models_out(deployer, user)
    with connect(url, "gateway") as gateway:
        followed = JetStreamDesiredStates(gateway).read()
        assert followed is not None
        assert followed.data == b"of pipeline"
        with pytest.raises(PublishRefused, match=r"may not publish to \$KV\.RL_DEPLOYMENT\.state"):
            JetStreamDesiredStates(gateway).swap(b"raised by a gateway", followed.revision)
    with connect(url, "observer") as observer:
        assert observer.state("RL_MODELS").messages >= 1
        assert observer.request("CONSUMER.INFO.RL_SERVING.serving_outcomes")["num_ack_pending"] == 0
    with connect(url, "admin") as admin:
        assert admin.erase("RL_TRAJECTORIES", sequence)
        assert admin.erase("RL_FEEDBACK", feedback[-1].sequence)
        assert admin.erase("RL_REWARDS", reward)
        admin.request("STREAM.PURGE.RL_DLQ")
        assert bootstrap(admin).drift == ()


def rolls_models_out(deployer: JetStream, user: str) -> None:
    """What the controller, the watchdog and a release do with the stream."""
    deployer.publish("agent.rl.model.deployed.v1", b"deployed", f"model-of-{user}")
    letter = OutgoingMessage(f"agent.rl.dlq.RL_SERVING.{len(user)}.0", b"no outcome", f"RL_SERVING.{user}")
    deployer.publish_many([letter])
    states = JetStreamDesiredStates(deployer)
    current = states.read()
    assert states.swap(f"of {user}".encode(), current.revision if current else 0) is not None
    assert states.history()[-1].data == f"of {user}".encode()
    leases = JetStreamLeases(deployer)
    lease = leases.acquire("releases", user, 60)
    assert lease is not None
    leases.release(lease)
    if user == "deployer":
        assert settle_all(deployer, "RL_SERVING", "serving_outcomes")[-1] == b"served"
    else:
        assert deployer.fetch("RL_SERVING", "serving_outcomes", 1, 0) == []


def settle_all(stream: JetStream, name: str, consumer: str) -> list[bytes]:
    """Settle everything pending, in each of the ways, and return it."""
    deliveries = [*stream.fetch(name, consumer, 1000, 0)]
    deliveries[0].nak()
    deliveries[0] = stream.fetch(name, consumer, 1, 10)[0]
    deliveries[0].term()
    stream.acknowledge(deliveries[1:])
    return [delivery.message.data for delivery in deliveries]


def test_an_agent_hears_of_a_deployed_model(url: str) -> None:
    heard: list[bytes] = []
    with connect(url, "agent") as agent, connect(url, "deployer") as deployer:
        end = agent.subscribe("agent.rl.model.deployed.v1", "", lambda message: heard.append(message.data))
        deployer.publish("agent.rl.model.deployed.v1", b"newer", "model-2")
        wait_until(lambda: heard == [b"newer"])
        end()


def test_an_agent_cannot_have_its_answers_sent_into_the_pipeline(url: str) -> None:
    async def ask_for_an_answer_elsewhere(client: Client) -> None:
        await client.publish("agent.rl.trajectory.v1", b"{}", reply="agent.rl.training.request.v1")

    with connect(url, "admin") as admin:
        before = admin.state("RL_TRAINING").last_sequence
        stored = admin.state("RL_TRAJECTORIES").last_sequence
        violations(url, "agent", ask_for_an_answer_elsewhere)
        wait_until(lambda: admin.state("RL_TRAJECTORIES").last_sequence > stored)
        # A message of the admin's own comes after any that the answer could have become.
        admin.publish("agent.rl.training.request.v1", b"", "marker")
        assert admin.state("RL_TRAINING").last_sequence == before + 1


def test_a_denied_publish_says_so_at_once(url: str) -> None:
    with connect(url, "agent") as agent:
        with pytest.raises(PublishRefused, match=r"id-1: this account may not publish to agent\.rl\.reward\.v1"):
            agent.publish("agent.rl.reward.v1", b"", "id-1")
        messages = [OutgoingMessage(f"agent.rl.{subject}.v1", b"", subject) for subject in ("reward", "trajectory")]
        with pytest.raises(PublishIncomplete, match="1 of 2") as incomplete:
            agent.publish_many(messages)
        assert list(incomplete.value.failures) == ["reward"]


def test_a_denied_request_says_so_at_once(url: str) -> None:
    with connect(url, "ingest") as ingest:
        attempts: list[Callable[[], object]] = [
            *(partial(ingest.erase, name, 1) for name in ("RL_TRAJECTORIES", "RL_FEEDBACK", "RL_REWARDS", "RL_DLQ")),
            lambda: ingest.state("RL_SERVING"),
            lambda: ingest.get("RL_SERVING", 1),
            lambda: ingest.fetch("RL_TRAINING", "training_requests", 1, 1),
            lambda: JetStreamLeases(ingest).holder("training"),
            lambda: ingest.fetch("RL_FEEDBACK", "feedback", 1, 1),
            lambda: ingest.request("STREAM.PURGE.RL_TRAJECTORIES"),
            lambda: ingest.subscribe("agent.rl.trajectory.v1", "rl-trainers", lambda _: None),
        ]
        for attempt in attempts:
            with pytest.raises(StreamDenied, match=r"this account may not .* use the account that may"):
                attempt()


def test_an_inbox_that_is_not_the_account_s_own_is_explained(url: str) -> None:
    with (
        connect(url, "agent", inbox_prefix="_INBOX") as agent,
        pytest.raises(PublishRefused, match=r"may not receive replies under _INBOX\.>.*inbox_prefix"),
    ):
        agent.publish("agent.rl.trajectory.v1", b"", "id-2")


@pytest.mark.parametrize(
    ("user", "secret", "text"),
    [("agent", "wrong", "refuses the user agent: check NATS_USER"), (None, None, "refuses connections without a user")],
)
def test_a_login_that_is_refused_says_which_settings_to_check(
    url: str, user: str | None, secret: str | None, text: str
) -> None:
    with pytest.raises(StreamDenied, match=text) as refusal:
        JetStream.connect(url, user=user, password=secret)
    assert "wrong" not in str(refusal.value)


def test_the_service_answers_what_the_trainer_asks_it(url: str) -> None:
    """It publishes the answer to an inbox that is the trainer's: only because it was asked."""
    subject = "agent.rl.training.status.request"

    def answer(data: bytes) -> "Future[bytes]":
        answered: Future[bytes] = Future()
        answered.set_result(b"heard " + data)
        return answered

    with connect(url, "service") as service, connect(url, "trainer") as trainer:
        end = service.serve(subject, "rl-service", answer)
        reply = trainer._connection.run(trainer._connection.ask(subject, b"you", seconds=30))
        assert reply.data == b"heard you"
        end()
