"""Base models from a directory, an object store and a hub: whole or not at all."""

import http.server
import json
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rl_pipeline.stores.object_addresses import open_objects
from rl_pipeline.training.checkpoints.releasing import release
from rl_pipeline.training.checkpoints.signing import PublicKeys, SignatureRejected, new_signing_key
from rl_pipeline.training.checkpoints.storage import CheckpointCorrupt, saving
from rl_pipeline.training.plans.base_models import (
    EMBEDDED,
    BaseModels,
    BaseModelUnavailable,
    HubUnreachable,
    is_signed,
)
from rl_pipeline.training.plans.model_size import NotAModel
from rl_pipeline.training.small_model.building import DEMONSTRATIONS, REVISION, AnotherSmallModel

KEY = new_signing_key()
META = {"job_id": "job-1", "step": 1, "created": datetime(2025, 12, 8, tzinfo=UTC)}
HEADER = json.dumps({"weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
FILES = {
    "config.json": b'{"model_type": "qwen2"}',
    "tokenizer.json": b"{}",
    "model.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + bytes(24),
}


def write_model(directory: Path, files: dict[str, bytes] = FILES) -> Path:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def models(tmp_path: Path, s3_client: Any) -> BaseModels:
    trusted = PublicKeys({KEY.key_id: KEY.secret.public_key()})
    return BaseModels(tmp_path / "models", partial(open_objects, s3_client=s3_client), trusted)


@pytest.fixture
def address(s3_client: Any, s3_bucket: str) -> str:
    """Where a plain model lies, uploaded by somebody else's program."""
    for name, content in {**FILES, "pytorch_model.bin": b"pickle"}.items():
        s3_client.put_object(Bucket=s3_bucket, Key=f"shared/models/mine/{name}", Body=content)
    return f"s3://{s3_bucket}/shared/models/mine/"


def nothing_is_left(models: BaseModels) -> bool:
    return not [path for path in models.directory.glob("*") if path.is_dir()]


def test_a_directory_is_used_where_it_is(models: BaseModels, tmp_path: Path) -> None:
    directory = write_model(tmp_path / "mine")
    assert models.find(str(directory)) == directory
    assert models.find(f"file://{directory}") == directory


def test_which_world_alone_a_model_knows_is_told_without_fetching_it(tmp_path: Path) -> None:
    def nobody_asks(url: str) -> Any:
        raise AssertionError(url)

    models = BaseModels(tmp_path / "models", nobody_asks, PublicKeys({}))
    copied = write_model(tmp_path / "copied", {**FILES, "recipe.json": b"{}"})
    crafting = [str(copied), f"file://{copied}", EMBEDDED]
    assert [world and world.name for world in map(models.small_world, crafting)] == ["crafting"] * 3
    asked = models.small_world(f"{EMBEDDED}@reasoning-gym:rotate_matrix")
    assert asked is not None
    assert asked.name == "reasoning-gym:rotate_matrix"
    others = ["s3://bucket/job/final", "Qwen/Qwen2.5-7B", "qwen"]
    assert [models.small_world(name) for name in others] == [None] * 3
    write_model(tmp_path / "models" / EMBEDDED)
    assert models.small_world(EMBEDDED) is None, "somebody has put another model there"


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("qwen2.5-32b-instruct", "qwen2.5-32b-instruct"),
        ("Qwen/Qwen2.5-7B", "Qwen--Qwen2.5-7B"),
        (EMBEDDED, EMBEDDED),
        (f"{EMBEDDED}@reasoning-gym:rotate_matrix", f"{EMBEDDED}--reasoning-gym--rotate_matrix"),
    ],
)
def test_a_model_is_found_by_name_among_the_models(models: BaseModels, name: str, directory: str) -> None:
    placed = write_model(models.directory / directory)
    assert models.find(name) == placed


@pytest.mark.parametrize("name", ["nobody-knows-it", "/nowhere/at/all", "./here", "s3://bucket"])
def test_a_model_that_is_nowhere_is_a_clear_error(models: BaseModels, name: str) -> None:
    with pytest.raises(BaseModelUnavailable):
        models.find(name)


def test_weights_that_are_no_safetensors_are_refused(models: BaseModels, tmp_path: Path) -> None:
    pickled = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    with pytest.raises(NotAModel, match="safetensors"):
        models.find(str(write_model(tmp_path / "mine", pickled)))


def test_a_local_checkpoint_of_ours_is_verified(models: BaseModels, tmp_path: Path) -> None:
    with saving(tmp_path / "final", META) as staging:
        for name, content in FILES.items():
            (staging / name).write_bytes(content)
    assert models.find(str(tmp_path / "final")) == tmp_path / "final"
    (tmp_path / "final" / "tokenizer.json").write_bytes(b"[]")
    with pytest.raises(CheckpointCorrupt):
        models.find(str(tmp_path / "final"))


def test_a_model_in_the_object_store_is_fetched_once_and_without_pickles(models: BaseModels, address: str) -> None:
    directory = models.find(address)
    assert files_of(directory) == FILES
    before = (directory / "config.json").stat().st_mtime_ns
    assert models.find(address) == directory
    assert (directory / "config.json").stat().st_mtime_ns == before


def test_a_model_that_changed_at_its_address_is_another(models: BaseModels, address: str, s3_client: Any) -> None:
    first = models.find(address)
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    s3_client.put_object(Bucket=bucket, Key=f"{prefix}tokenizer.json", Body=b'{"version": 2}')
    second = models.find(address)
    assert first != second
    assert files_of(first)["tokenizer.json"] == b"{}", "a training may still read it"
    assert files_of(second)["tokenizer.json"] == b'{"version": 2}'


def test_half_a_model_in_the_object_store_leaves_nothing_behind(
    models: BaseModels, address: str, s3_client: Any
) -> None:
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    s3_client.put_object(Bucket=bucket, Key=f"{prefix}model.safetensors", Body=FILES["model.safetensors"][:20])
    with pytest.raises(NotAModel):
        models.find(address)
    assert nothing_is_left(models)
    with pytest.raises(BaseModelUnavailable, match="config"):
        models.find(f"s3://{bucket}/shared/models/other")


def test_a_released_checkpoint_must_be_signed_by_somebody_we_trust(
    models: BaseModels, tmp_path: Path, s3_client: Any, s3_bucket: str
) -> None:
    with saving(tmp_path / "final", META) as staging:
        for name, content in FILES.items():
            (staging / name).write_bytes(content)
    objects = open_objects(f"s3://{s3_bucket}/checkpoints", s3_client=s3_client)
    release(tmp_path / "final", objects, "job-1", KEY)
    release(tmp_path / "final", objects, "job-2", new_signing_key())
    assert files_of(models.find(f"s3://{s3_bucket}/checkpoints/job-1")).items() >= FILES.items()
    with pytest.raises(SignatureRejected):
        models.find(f"s3://{s3_bucket}/checkpoints/job-2")


class Hub(http.server.BaseHTTPRequestHandler):
    """The few answers of a hub that fetching one model takes."""

    refusals: ClassVar[dict[str, int]] = {"gated": 403, "broken": 500, "busy": 429}
    commit = "0123456789abcdef0123456789abcdef01234567"

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/someone/small/revision/"):
            self._answer(json.dumps({"id": "someone/small", "sha": self.commit}).encode())
        elif self.path.startswith("/api/models/someone/small/tree/"):
            entries = [{"type": "file", "path": name, "size": len(FILES[name]), "oid": name} for name in FILES]
            self._answer(json.dumps(entries).encode())
        elif self.path.startswith("/someone/small/resolve/"):
            self._answer(FILES.get(self.path.rpartition("/")[2]))
        else:
            self._answer(None, next((code for name, code in self.refusals.items() if name in self.path), 404))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, content: bytes | None, refusal: int = 404) -> None:
        self.send_response(refusal if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        if content is not None:
            self.send_header("ETag", f'"{sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", self.commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests' output is not for this."""


@pytest.fixture
def hub() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_model_of_the_hub_is_fetched_once(models: BaseModels, hub: str) -> None:
    online = BaseModels(models.directory, models.open_objects, models.public_keys, hub=hub)
    directory = online.find("someone/small")
    assert files_of(directory) == FILES
    offline = BaseModels(models.directory, models.open_objects, models.public_keys, hub="http://127.0.0.1:9")
    assert offline.find("someone/small") == directory


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("someone/else", BaseModelUnavailable),
        ("someone/gated", BaseModelUnavailable),
        ("someone/broken", HubUnreachable),
        ("someone/busy", HubUnreachable),
    ],
)
def test_what_the_hub_says_of_a_model_is_told_from_a_hub_that_is_out_of_order(
    models: BaseModels, hub: str, name: str, error: type[Exception]
) -> None:
    online = BaseModels(models.directory, models.open_objects, models.public_keys, hub=hub)
    with pytest.raises(error, match="cannot be fetched from the hub"):
        online.find(name)
    assert nothing_is_left(models)


def test_a_hub_that_does_not_answer_may_answer_later(models: BaseModels) -> None:
    online = BaseModels(models.directory, models.open_objects, models.public_keys, hub="http://127.0.0.1:9")
    with pytest.raises(HubUnreachable, match="cannot be fetched from the hub now"):
        online.find("qwen2.5-32b-instruct")
    assert nothing_is_left(models)


def test_a_released_checkpoint_without_its_manifest_does_not_pass_for_a_model_that_nobody_signed(
    models: BaseModels, tmp_path: Path, s3_client: Any, s3_bucket: str
) -> None:
    with saving(tmp_path / "final", META) as staging:
        for name, content in FILES.items():
            (staging / name).write_bytes(content)
    objects = open_objects(f"s3://{s3_bucket}/checkpoints", s3_client=s3_client)
    release(tmp_path / "final", objects, "job-1/final", KEY)
    url = f"s3://{s3_bucket}/checkpoints/job-1/final"
    assert is_signed(models.find(url, objects))
    objects.put("job-1/final/tokenizer.json", b'{"another": "model"}')
    objects.delete("job-1/final/manifest.json")
    with pytest.raises(SignatureRejected, match="lost its manifest"):
        models.find(url)
    objects.delete("job-1/final/manifest.sig.json")
    with pytest.raises(SignatureRejected, match="lost its manifest"):
        models.find(f"{url}/", objects)
    assert not is_signed(models.find(url)), "of another store nobody knows who writes there"


def test_a_checkpoint_that_was_released_to_a_directory_must_be_signed_too(models: BaseModels, tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "released"))
    for job, key in {"trusted": KEY, "foreign": new_signing_key()}.items():
        with saving(tmp_path / job, META) as staging:
            for name, content in FILES.items():
                (staging / name).write_bytes(content)
        release(tmp_path / job, objects, f"{job}/final", key)
    assert is_signed(models.find(objects.url("trusted/final"), objects))
    with pytest.raises(SignatureRejected):
        models.find(objects.url("foreign/final"), objects)


def test_an_embedded_model_of_a_world_that_none_is_made_for_is_a_clear_error(models: BaseModels) -> None:
    with pytest.raises(BaseModelUnavailable, match="there is no world 'nowhere': use one of crafting"):
        models.find(f"{EMBEDDED}@nowhere")
    assert nothing_is_left(models)


def test_an_embedded_model_of_another_recipe_is_not_taken_for_this_one(models: BaseModels) -> None:
    placed = write_model(models.directory / EMBEDDED, FILES | {"recipe.json": b'{"revision": 0}'})
    with pytest.raises(AnotherSmallModel, match="remove it"):
        models.find(EMBEDDED)
    recipe = {"revision": REVISION, "seed": 0, "demonstrations": DEMONSTRATIONS}
    (placed / "recipe.json").write_text(json.dumps(recipe))
    assert models.find(EMBEDDED) == placed
