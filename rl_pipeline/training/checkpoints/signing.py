"""Who vouches for a checkpoint: Ed25519 signatures over the bytes of its manifest, and the keys on both sides.

Whoever trains holds the private key; whoever serves holds public keys only. What a manifest says is not looked at here.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, ValidationError

from rl_pipeline.errors import PipelineError

_KEY = re.compile(r"(?P<id>[A-Za-z0-9._-]{1,64}):(?P<key>[A-Za-z0-9+/]{43}=)")


class InvalidSigningKey(PipelineError):
    """A key that cannot be used; the text says how to write one, and never has the key."""


class SignatureRejected(PipelineError):
    """Nobody who is trusted vouches for these bytes."""


@dataclass(frozen=True)
class SigningKey:
    """The private half of a key, and the id under which others know its public half."""

    key_id: str
    secret: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> "SigningKey":
        """Read `<key id>:<private key, 32 bytes as base64>`."""
        key_id, key = _parsed(text, "CHECKPOINT_SIGNING_KEY")
        return cls(key_id, Ed25519PrivateKey.from_private_bytes(key))

    def as_text(self) -> str:
        """What `parse` reads: a secret."""
        return f"{self.key_id}:{base64.b64encode(self.secret.private_bytes_raw()).decode()}"

    def public_text(self) -> str:
        """The public half, as `PublicKeys.parse` reads it."""
        return f"{self.key_id}:{base64.b64encode(self.secret.public_key().public_bytes_raw()).decode()}"

    def sign(self, manifest: bytes) -> bytes:
        """The content of `manifest.sig.json`."""
        signature = base64.b64encode(self.secret.sign(manifest)).decode()
        return _Signature(key_id=self.key_id, signature=signature).model_dump_json(indent=1).encode() + b"\n"


@dataclass(frozen=True)
class PublicKeys:
    """Whose signatures are trusted, by key id. Several while one key takes over from another."""

    keys: Mapping[str, Ed25519PublicKey]

    @classmethod
    def parse(cls, text: str) -> "PublicKeys":
        """Read `<key id>:<public key, 32 bytes as base64>`, separated by commas; an empty text trusts nobody."""
        parsed = [_parsed(each, "CHECKPOINT_PUBLIC_KEYS") for each in text.split(",") if text.strip()]
        keys = {key_id: Ed25519PublicKey.from_public_bytes(key) for key_id, key in parsed}
        if len(keys) < len(parsed):
            raise InvalidSigningKey("CHECKPOINT_PUBLIC_KEYS has two keys of the same id: give each an id of its own.")
        return cls(keys)

    def verify(self, manifest: bytes, signature: bytes) -> str:
        """The id of the trusted key that signed `manifest`; `signature` is the content of `manifest.sig.json`.

        Raises `SignatureRejected` for anything else.
        """
        try:
            claimed = _Signature.model_validate_json(signature)
            raw = base64.b64decode(claimed.signature, validate=True)
        except (ValidationError, binascii.Error):
            raise SignatureRejected("The signature cannot be read: sign the checkpoint again.") from None
        if claimed.key_id not in self.keys:
            raise SignatureRejected(
                f"The checkpoint is signed with the key {claimed.key_id[:64]!r}, which is not trusted: "
                "add its public half to CHECKPOINT_PUBLIC_KEYS if it should be."
            )
        try:
            self.keys[claimed.key_id].verify(raw, manifest)
        except InvalidSignature:
            raise SignatureRejected(
                f"The signature is not that of the key {claimed.key_id}: the checkpoint was changed; do not use it."
            ) from None
        return claimed.key_id


def new_signing_key() -> SigningKey:
    """A key nobody has seen, named after its public half."""
    secret = Ed25519PrivateKey.generate()
    return SigningKey(hashlib.sha256(secret.public_key().public_bytes_raw()).hexdigest()[:16], secret)


class _Signature(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    key_id: str
    signature: str


def _parsed(text: str, name: str) -> tuple[str, bytes]:
    found = _KEY.fullmatch(text.strip())
    if found is None:
        raise InvalidSigningKey(
            f"{name} is not a key: write <key id>:<32 bytes as base64>, with an id of A-Z 0-9 . _ -."
        )
    return found["id"], base64.b64decode(found["key"], validate=True)
