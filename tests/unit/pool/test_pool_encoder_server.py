"""The server as its clients see it: a process with a small model, on a Unix socket and on a port."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

np = pytest.importorskip("numpy")
for library in ("onnxruntime", "tokenizers", "orjson"):
    pytest.importorskip(library)

import tinybert  # noqa: E402

import fleetctl  # noqa: E402

CHECKOUT = Path(fleetctl.__file__).parent.parent
WAIT = 60.0
MSGPACK = "application/msgpack"
TEXTS = ["The queue is full.", "the boxs", "A model is loaded", ""]


class Unix(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=WAIT)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT)
        self.sock.connect(str(self.path))


def _listens(path: Path) -> bool:
    """The socket is there a moment before anybody listens on it."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def argv(model: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "fleetctl.pool.encoder", "--model", str(model), "--threads", "2", *more]


@contextmanager
def process(model: Path, path: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A server that answers on the Unix socket ``path``."""
    whole = argv(model, "--served-model-name", "tiny", "small", "--uds", str(path), *more)
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(whole, env=env, stderr=subprocess.PIPE, text=True) as server:
        try:
            end = time.monotonic() + WAIT
            while not _listens(path) and server.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            assert _listens(path), server.stderr and server.stderr.read()
            yield server
        finally:
            server.kill()


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("encoder")
    tinybert.write(folder / "model", matryoshka_dimensions=[8, 16])
    with process(folder / "model", folder / "socket"):
        yield folder / "socket"


def ask(path: Path, where: str, body: object = None, **headers: str) -> tuple[int, str, bytes]:
    """Status, content type and body of the answer; a body that is no bytes is sent as JSON."""
    connection = Unix(path)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    told = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET" if data is None else "POST", where, data, {} if data is None else told)
    answer = connection.getresponse()
    return answer.status, answer.getheader("content-type") or "", answer.read()


def embed(path: Path, content: object, **fields: object) -> Any:
    status, _, body = ask(path, "/v1/embeddings", {"model": "tiny", "input": content, **fields})
    assert status == 200, body
    return json.loads(body)


def test_texts_and_their_tokens_have_the_same_vectors_in_every_form(socket_path: Path) -> None:
    answer = embed(socket_path, TEXTS)
    vectors = np.array([one["embedding"] for one in answer["data"]], np.float32)
    assert [one["index"] for one in answer["data"]] == [0, 1, 2, 3]
    assert answer["model"] == "tiny" and answer["object"] == "list"
    assert vectors.shape == (4, tinybert.WIDTH)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)

    coded = embed(socket_path, TEXTS, encoding_format="base64")
    for one, wanted in zip(coded["data"], vectors, strict=True):
        np.testing.assert_allclose(np.frombuffer(base64.b64decode(one["embedding"]), "<f4"), wanted, atol=1e-6)

    asked = msgpack.packb({"model": "small", "input": TEXTS})
    status, kind, body = ask(socket_path, "/v1/embeddings", asked, content_type=MSGPACK)
    packed = msgpack.unpackb(body)
    assert (status, kind, packed["usage"], packed["model"]) == (200, MSGPACK, answer["usage"], "small")
    for one, wanted in zip(packed["data"], vectors, strict=True):
        np.testing.assert_allclose(np.frombuffer(one["embedding"], "<f4"), wanted, atol=1e-6)

    words = tinybert.VOCABULARY.index
    tokens = [2, words("the"), words("box"), words("##s"), 3]
    for content in (tokens, [tokens]):
        alone = embed(socket_path, content)
        assert alone["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
        np.testing.assert_allclose(alone["data"][0]["embedding"], vectors[1], atol=1e-6)


def test_shorter_vectors_are_those_the_model_was_trained_for(socket_path: Path) -> None:
    whole = np.array(embed(socket_path, "full")["data"][0]["embedding"])
    short = np.array(embed(socket_path, "full", dimensions=8)["data"][0]["embedding"])
    np.testing.assert_allclose(short, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)
    same = embed(socket_path, "full", dimensions=tinybert.WIDTH)["data"][0]["embedding"]
    np.testing.assert_allclose(same, whole, atol=1e-6)


def test_a_long_text_is_refused_or_cut_as_the_request_says(socket_path: Path) -> None:
    text = "the box " * 20
    status, _, body = ask(socket_path, "/v1/embeddings", {"model": "tiny", "input": ["full", text]})
    told = json.loads(body)["error"]
    assert (status, told["type"], told["param"], told["code"]) == (400, "BadRequestError", "input", 400)
    assert "maximum context length is 16 tokens; input 1 has 42" in told["message"]
    cut = embed(socket_path, text, truncate_prompt_tokens=-1)
    assert cut["usage"]["prompt_tokens"] == 16
    assert cut["data"] == embed(socket_path, "the box " * 7)["data"]
    assert embed(socket_path, text, truncate_prompt_tokens=4)["data"] == embed(socket_path, "the box")["data"]


@pytest.mark.parametrize(
    ("where", "body", "headers", "status", "said"),
    [
        (
            "/v1/embeddings",
            {"model": "other", "input": "a"},
            {},
            404,
            "The model `other` does not exist. It serves tiny",
        ),
        ("/v1/embeddings", b"{", {}, 400, "the body is not JSON"),
        ("/v1/embeddings", {"model": "tiny", "input": [[999]]}, {}, 400, "there is no token 999; the last is 19"),
        ("/v1/embeddings", {"model": "tiny", "input": "a", "dimensions": 9}, {}, 400, "can be 8, 16, 32 with"),
        ("/v1/embeddings", {"model": "tiny", "input": "a", "truncate_prompt_tokens": 17}, {}, 400, "it can be 3 to 16"),
        ("/v1/embeddings", {"model": "tiny", "input": "a" * (2 << 20)}, {}, 400, "has 2097152 characters"),
        ("/v1/embeddings", None, {}, 405, "takes POST"),
        ("/v1/models", {}, {}, 405, "takes GET"),
        ("/v1/rerank", {}, {}, 404, "there is no /v1/rerank here"),
        ("/v1/embeddings", b"\xc1", {"content_type": MSGPACK}, 400, "the body is not MessagePack"),
        ("/v1/embeddings", b"\xc1", {"accept": MSGPACK}, 400, "the body is not JSON"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_the_form_of_openai(
    socket_path: Path, where: str, body: Any, headers: dict[str, str], status: int, said: str
) -> None:
    got, kind, answer = ask(socket_path, where, body, **headers)
    assert kind == (MSGPACK if headers else "application/json")
    told = (msgpack.unpackb(answer) if headers else json.loads(answer))["error"]
    assert (got, told["code"]) == (status, status)
    assert said in told["message"]


def test_it_tells_its_names_its_health_and_its_figures(socket_path: Path) -> None:
    status, _, body = ask(socket_path, "/v1/models")
    models = json.loads(body)["data"]
    assert (status, [one["id"] for one in models], models[0]["max_model_len"]) == (200, ["tiny", "small"], 16)
    assert ask(socket_path, "/health")[0::2] == (200, b"")

    def counted() -> float:
        lines = ask(socket_path, "/metrics")[2].decode().splitlines()
        return float(next(one.split()[1] for one in lines if one.startswith("vllm:prompt_tokens_total{")))

    before = counted()
    embed(socket_path, ["the box", "full"])
    assert counted() - before == 4 + 3


def test_many_clients_at_once_each_get_their_own_vectors(socket_path: Path) -> None:
    texts = [" ".join(tinybert.WORDS[number % 7 : number % 7 + 1 + number % 9]) for number in range(64)]
    alone = {text: embed(socket_path, text)["data"][0]["embedding"] for text in set(texts)}
    got: dict[int, Any] = {}

    def client(number: int) -> None:
        got[number] = embed(socket_path, texts[number : number + 8])["data"]

    threads = [threading.Thread(target=client, args=(number,)) for number in range(0, 64, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, data in got.items():
        for one, text in zip(data, texts[number : number + 8], strict=True):
            np.testing.assert_allclose(one["embedding"], alone[text], atol=1e-6)
    assert len(got) == 8


def test_it_ends_cleanly_on_sigterm_once_the_work_is_done(tmp_path: Path) -> None:
    tinybert.write(tmp_path / "model")
    with process(tmp_path / "model", tmp_path / "socket") as server:
        open_for_long = Unix(tmp_path / "socket")  # a connection without a request keeps nobody waiting
        open_for_long.request("GET", "/health")
        open_for_long.getresponse().read()
        at_work: list[Any] = []
        content = ["the box is full of models"] * 2000
        thread = threading.Thread(target=lambda: at_work.append(embed(tmp_path / "socket", content)))
        thread.start()
        while b'running{model_name="tiny"} 1' not in ask(tmp_path / "socket", "/metrics")[2] and not at_work:
            time.sleep(0.001)
        server.send_signal(signal.SIGTERM)
        assert server.wait(WAIT) == 0
        thread.join(WAIT)
        assert len(at_work[0]["data"]) == 2000
        assert not (tmp_path / "socket").exists()
        assert server.stderr is not None
        told = server.stderr.read()
        assert "tiny, small on unix:" in told and "32 numbers, of length 1 by mean, 16 tokens at most" in told
        assert "Traceback" not in told


def test_on_a_port_it_says_which_one_and_when_it_is_taken(tmp_path: Path) -> None:
    tinybert.write(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(argv(tmp_path, "--port", "0"), env=env, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        port = said.partition("http://127.0.0.1:")[2].partition(":")[0]
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=WAIT)
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == tmp_path.name
        second = subprocess.run(argv(tmp_path, "--port", port), env=env, capture_output=True, text=True, timeout=WAIT)
        server.terminate()
        assert server.wait(WAIT) == 0
    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in second.stderr.lower()


def test_a_model_that_cannot_be_served_is_one_message_and_no_traceback(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(argv(tmp_path, "--port", "0"), env=env, capture_output=True, text=True, timeout=WAIT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {tmp_path} has no modules.json")
    assert "Traceback" not in done.stderr


def test_nothing_heavy_is_imported_until_a_model_is_loaded_and_what_is_missing_is_said(tmp_path: Path) -> None:
    heavy = ["numpy", "onnxruntime", "tokenizers", "google.protobuf"]
    ask_for = f"""
import sys
sys.modules.update(dict.fromkeys({heavy}))  # as if they were not installed
import fleetctl.pool.encoder.api, fleetctl.pool.encoder.engine
sys.argv = ["encoder", "--model", {str(tmp_path)!r}, "--port", "0"]
from fleetctl.pool.encoder.__main__ import main
sys.exit(main())
"""
    tinybert.write(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([sys.executable, "-c", ask_for], env=env, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 1
    assert "libraries are not installed" in done.stderr and "pip install 'fleetctl[encoder]'" in done.stderr
