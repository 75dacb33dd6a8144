"""How a connection to NATS logs in, and what people are told when it may not. What it does afterwards is not here."""

import base64
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nats.errors

from rl_pipeline.stores.stream import StreamDenied

_CREDENTIALS = re.compile(
    rb"-BEGIN NATS USER JWT-+\s+(?P<jwt>[\w.=-]+)\s+-+END.+-BEGIN USER NKEY SEED-+\s+(?P<seed>\w+)\s+-+END", re.DOTALL
)


@dataclass(frozen=True)
class Login:
    """Who a connection is: nobody, a user with a password, or a credentials file."""

    user: str | None = None
    password: str | None = None
    credentials_file: Path | None = None

    def options(self) -> dict[str, Any]:
        """The options of nats-py that log in this way. Raises `StreamDenied` for a file that is of no use."""
        file = self.credentials_file
        if file is None:
            return {"user": self.user, "password": self.password}
        try:
            _sign(file, "")
        except ImportError as error:
            raise StreamDenied("a credentials file needs nkeys: pip install 'nats-py[nkeys]'") from error
        except (OSError, nats.errors.Error) as error:
            why = error.strerror if isinstance(error, OSError) else "it lacks a user's JWT or seed"
            raise StreamDenied(
                f"{file} is no credentials file ({why}): set NATS_CREDENTIALS_FILE to a .creds file"
            ) from error
        return {"user_jwt_cb": lambda: _read(file)["jwt"], "signature_cb": partial(_sign, file)}

    def refusal(self, url: str) -> StreamDenied:
        """For people: the server does not accept this login."""
        if self.credentials_file:
            text = f"the user of {self.credentials_file}: check NATS_CREDENTIALS_FILE, and that it has not expired"
        elif self.user:
            text = f"the user {self.user}: check NATS_USER and NATS_PASSWORD"
        else:
            text = "connections without a user: set NATS_USER and NATS_PASSWORD, or NATS_CREDENTIALS_FILE"
        return StreamDenied(f"NATS at {url} refuses {text}")


def _read(credentials_file: Path) -> re.Match[bytes]:
    """The file as it is now: it may have been renewed since the last connection.

    Not left to nats-py, which never returns from a file without a JWT, and gives up for good on one that is
    half-written. The errors here are those that it retries.
    """
    found = _CREDENTIALS.search(credentials_file.read_bytes())
    if found is None:
        raise nats.errors.InvalidUserCredentialsError
    return found


def _sign(credentials_file: Path, nonce: str) -> bytes:
    import nkeys  # only credentials files need it

    try:
        key = nkeys.from_seed(_read(credentials_file)["seed"])
    except (nkeys.NkeysError, ValueError) as error:
        raise nats.errors.InvalidUserCredentialsError from error
    return base64.b64encode(key.sign(nonce.encode()))
