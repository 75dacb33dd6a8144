"""Signatures over manifests: who is believed, and who is not."""

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from rl_pipeline.training.checkpoints.signing import (
    InvalidSigningKey,
    PublicKeys,
    SignatureRejected,
    SigningKey,
    new_signing_key,
)

MANIFEST = b'{"format": 1}\n'
# From RFC 8032, section 7.1, TEST 2.
RFC_SECRET = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
RFC_PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
RFC_SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aee"
    "b00d291612bb0c00"
)


def public_keys(*keys: SigningKey) -> PublicKeys:
    return PublicKeys.parse(", ".join(key.public_text() for key in keys))


def test_a_signature_is_ed25519_over_the_bytes_as_they_are() -> None:
    key = SigningKey.parse(f"rfc:{base64.b64encode(RFC_SECRET).decode()}")
    signature = json.loads(key.sign(b"\x72"))
    assert signature == {"key_id": "rfc", "signature": base64.b64encode(RFC_SIGNATURE).decode()}
    assert key.public_text() == f"rfc:{base64.b64encode(RFC_PUBLIC).decode()}"


def test_a_key_survives_being_written_down() -> None:
    key = new_signing_key()
    again = SigningKey.parse(f" {key.as_text()}\n")
    assert public_keys(key).verify(MANIFEST, again.sign(MANIFEST)) == key.key_id == again.key_id
    assert new_signing_key().as_text() != key.as_text()


def test_a_key_is_named_after_its_public_half() -> None:
    key = new_signing_key()
    assert new_signing_key().key_id != key.key_id
    assert isinstance(public_keys(key).keys[key.key_id], Ed25519PublicKey)


def test_a_secret_does_not_reach_logs_or_errors() -> None:
    key = new_signing_key()
    secret = key.as_text().partition(":")[2]
    assert secret not in repr(key)
    for text in (f"no id{secret}", f":{secret}", f"a b:{secret}", f"a:{secret[:-4]}", f"a:{secret}{secret}"):
        with pytest.raises(InvalidSigningKey, match="CHECKPOINT_SIGNING_KEY is not a key") as caught:
            SigningKey.parse(text)
        assert secret[:-4] not in str(caught.value)


def test_any_of_several_trusted_keys_will_do_while_one_takes_over_from_another() -> None:
    old, new = new_signing_key(), new_signing_key()
    trusted = public_keys(old, new)
    assert trusted.verify(MANIFEST, old.sign(MANIFEST)) == old.key_id
    assert trusted.verify(MANIFEST, new.sign(MANIFEST)) == new.key_id


def test_a_changed_manifest_is_rejected() -> None:
    key = new_signing_key()
    with pytest.raises(SignatureRejected, match="was changed"):
        public_keys(key).verify(MANIFEST + b" ", key.sign(MANIFEST))


def test_an_unknown_key_is_rejected_by_its_id() -> None:
    stranger = new_signing_key()
    for trusted in (public_keys(new_signing_key()), PublicKeys.parse("")):
        with pytest.raises(SignatureRejected, match=rf"{stranger.key_id}.*not trusted"):
            trusted.verify(MANIFEST, stranger.sign(MANIFEST))


def test_a_stranger_under_the_id_of_a_trusted_key_is_rejected() -> None:
    trusted = new_signing_key()
    impostor = SigningKey(trusted.key_id, new_signing_key().secret)
    with pytest.raises(SignatureRejected, match="not that of the key"):
        public_keys(trusted).verify(MANIFEST, impostor.sign(MANIFEST))


@pytest.mark.parametrize(
    "signature",
    [
        *(b"", b"{}", b"[]", b"\xff"),
        *(b'{"key_id": "a"}', b'{"key_id": "a", "signature": "?"}', b'{"key_id": null, "signature": ""}'),
        b'{"key_id": "a", "signature": "", "algorithm": "none"}',
    ],
)
def test_what_is_no_signature_is_rejected(signature: bytes) -> None:
    with pytest.raises(SignatureRejected, match="cannot be read"):
        PublicKeys.parse("").verify(MANIFEST, signature)


def test_an_empty_signature_of_a_trusted_key_is_rejected() -> None:
    key = new_signing_key()
    with pytest.raises(SignatureRejected, match="not that of the key"):
        public_keys(key).verify(MANIFEST, json.dumps({"key_id": key.key_id, "signature": ""}).encode())


def test_two_keys_of_one_id_are_a_mistake() -> None:
    one, other = new_signing_key(), new_signing_key()
    twin = SigningKey(one.key_id, other.secret)
    with pytest.raises(InvalidSigningKey, match="two keys of the same id"):
        public_keys(one, twin)
    with pytest.raises(InvalidSigningKey, match="CHECKPOINT_PUBLIC_KEYS is not a key"):
        PublicKeys.parse(f"{one.public_text()},")
