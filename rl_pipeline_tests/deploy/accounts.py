"""The users of deploy/nats, and how a test logs in as one of them."""

from pathlib import Path

from rl_pipeline.stores.jetstream import JetStream

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nats" / "nats-server.conf"
USERS = (
    "agent",
    "pipeline",
    "ingest",
    "trainer",
    "gateway",
    "gateway_admin",
    "deployer",
    "service",
    "observer",
    "admin",
)


def password(user: str) -> str:
    return f"password-of-{user}"


def connect(url: str, user: str, **options: str) -> JetStream:
    return JetStream.connect(url, user=user, password=password(user), **options)  # type: ignore[arg-type]
