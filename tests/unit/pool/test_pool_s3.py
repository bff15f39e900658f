"""Long bodies in a bucket, with OpenStack Swift as the server: stored as they come, fetched, removed, expired."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from bucket import Storage, needs_s3, storage, until
from certified import needs_openssl, self_signed
from gateways import gateway, worker
from gateways import until as soon
from natsserver import NatsServer, needs_nats
from poolworker import asking, config, engine, working

from fleetctl.pool import wire

pytestmark = [needs_s3, needs_nats]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    with storage(tmp_path_factory.mktemp("s3") / "swift") as server:
        yield server


async def pieces(count: int, fails: bool = False) -> AsyncIterator[bytes]:
    for number in range(count):
        await asyncio.sleep(0)
        yield bytes([number % 251]) * 65536
    if fails:
        raise RuntimeError("the client has gone")


@pytest.mark.parametrize("count", [1, 200], ids=["short", "in parts"])
def test_a_body_comes_back_as_it_was_stored_and_can_be_removed(s3: Storage, count: int) -> None:
    from fleetctl.pool.s3 import Bucket, S3GoneError

    async def there_and_back() -> None:
        bucket = Bucket(s3.access)
        name = await bucket.put(pieces(count))
        assert s3.names()[0] == f"fleet/a/{name.removeprefix('s3:')}"
        assert await bucket.get(name, count * 65536) == b"".join([piece async for piece in pieces(count)])
        with pytest.raises(S3GoneError, match=f"has {count * 65536} bytes instead of 5"):
            await bucket.get(name, 5)
        await bucket.remove(name)
        assert s3.names() == []
        await bucket.remove(name)
        with pytest.raises(S3GoneError, match="not in the bucket bodies"):
            await bucket.get(name, 5)

    asyncio.run(there_and_back())


def test_of_an_upload_that_is_given_up_nothing_is_left(s3: Storage) -> None:
    from fleetctl.pool.s3 import Bucket

    async def given_up() -> None:
        bucket, before = Bucket(s3.access), s3.parts()
        with pytest.raises(RuntimeError, match="the client has gone"):
            await bucket.put(pieces(200, fails=True))
        begun = asyncio.Event()

        async def stalls() -> AsyncIterator[bytes]:
            async for piece in pieces(200):
                yield piece
            begun.set()
            await asyncio.sleep(60)

        putting = asyncio.create_task(bucket.put(stalls()))
        await begun.wait()
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert s3.names() == []
        await until(lambda: s3.parts() == before)

    asyncio.run(given_up())


def test_what_is_wrong_is_told_without_the_keys(s3: Storage) -> None:
    from fleetctl.pool.s3 import Bucket, S3Error

    cases = {
        "does not take the keys of `pool: bodies:` \\(SignatureDoesNotMatch\\)": {"secret": "hunter2hunter2"},
        "there is no bucket for long bodies: the bucket none at http": {"bucket": "none"},
        "cannot be had \\(no answer\\)": {"endpoint": "http://127.0.0.1:9"},
    }

    async def wrong() -> None:
        for said, changes in cases.items():
            bucket = Bucket(s3.refusing(**changes))
            with pytest.raises(S3Error, match=said) as failed:
                await bucket.prove()
            assert "hunter2" not in str(failed.value) and "test:pool" not in str(failed.value)
            with pytest.raises(S3Error, match=said):
                await bucket.put(pieces(200))
        await Bucket(s3.access).prove()
        assert s3.names() == []

    asyncio.run(wrong())


@needs_openssl
def test_a_certificate_that_is_not_trusted_is_told_as_such(tmp_path: Path) -> None:
    from fleetctl.pool.s3 import Bucket, S3Error

    certificate, key = self_signed(tmp_path, "minio")
    word = tmp_path / "word"
    word.write_text("word")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def refused() -> str:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        endpoint = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        access = wire.S3Access("bodies", "pool", endpoint, "us-east-1", str(word), str(word))
        with pytest.raises(S3Error) as told:
            await Bucket(access).prove()
        server.close()
        return told.value.message

    assert "its certificate is not valid for the CAs of this box" in asyncio.run(refused())


@pytest.mark.parametrize(
    ("text", "said"), [("AK\nhunter2", "line break"), ("schlüssel", "odd letter"), (" \n", "empty")]
)
def test_what_cannot_be_a_key_is_refused_before_it_is_used(text: str, said: str, tmp_path: Path) -> None:
    from fleetctl.pool.s3 import Bucket, S3Error

    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(S3Error, match=said) as refused:
        Bucket(wire.S3Access("bodies", "pool", "http://127.0.0.1:9", "us-east-1", str(file), str(file)))
    assert str(file) in refused.value.message and "hunter2" not in refused.value.message


def test_old_bodies_expire_and_what_else_is_in_the_bucket_stays(s3: Storage) -> None:
    from fleetctl.pool.s3 import Bucket

    async def swept() -> None:
        bucket = Bucket(s3.access)
        await bucket.put(pieces(1))
        raw = s3.raw()
        others = ["fleet/a/deeper/" + "a" * 24, "fleet/a/notes.txt", "fleet/" + "a" * 24]
        for other in others:
            await raw.put_async(other, b"not ours")
        assert await bucket.sweep() == 0
        assert await bucket.sweep(seconds=-60) == 1
        assert s3.names() == sorted(others)
        for other in others:
            await raw.delete_async(other)

    asyncio.run(swept())


def test_one_upload_through_a_gateway_is_fetched_and_removed_by_a_worker(
    server: NatsServer, tmp_path: Path, s3: Storage
) -> None:
    one = engine(tmp_path, "gen", pinned=True, task="generate")

    async def serve(port: asyncio.Future[int] | None = None) -> None:
        settings = config(server.access, one)
        async with asking(server.access), working(wire.WorkerConfig(**{**vars(settings), "s3": s3.access})):
            with gateway(tmp_path, server.access, s3=s3.access) as door:
                await until(lambda: door.get("/health?bodies").status == 200)
                body = {"model": "gen", "prompt": "x" * 12_000_000}
                answer = await asyncio.to_thread(door.post, "/v1/completions", body)
                assert (answer.status, json.loads(answer.body)["choices"]) == (200, [{"text": "12000000 characters"}])
                await until(lambda: s3.names() == [])

    asyncio.run(serve())


def test_a_gateway_whose_bucket_refuses_says_so_before_clients_do_and_serves_the_rest(
    server: NatsServer, tmp_path: Path, s3: Storage
) -> None:
    with worker(server.access), gateway(tmp_path, server.access, s3=s3.refusing(secret="hunter2")) as door:
        soon(lambda: b"SignatureDoesNotMatch" in door.get("/health?bodies").body)
        assert door.get("/health?bodies").status == 503
        assert door.get("/health").status == 200
        assert door.post("/v1/embeddings", {"model": "minilm", "input": "short"}).status == 200
        answer = door.post("/v1/embeddings", {"model": "minilm", "input": "x" * 2_000_000})
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "store_away", "5")
        assert "SignatureDoesNotMatch" not in answer.body.decode()
        assert "hunter2" not in (tmp_path / "g1.log").read_text()
