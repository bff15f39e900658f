"""What a gateway finds in a body, and what it is not fooled by."""

from __future__ import annotations

import json
import time
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.pool.gateway.asked import TOKENS_OF_AN_IMAGE, cost, scanner_for
from fleetctl.pool.gateway.json_scan import JsonScanner
from fleetctl.pool.gateway.msgpack_scan import MessagePackScanner
from fleetctl.pool.gateway.scan import KEYS, Scanner

LEAF = st.none() | st.booleans() | st.integers(-(1 << 31), 1 << 31) | st.floats(allow_nan=False) | st.text(max_size=20)
NAMES = st.sampled_from(sorted(KEYS)) | st.text(max_size=8) | st.sampled_from(['"model"', "mod\\el", "{", '":"'])
NESTED = st.recursive(LEAF, lambda below: st.lists(below) | st.dictionaries(NAMES, below), max_leaves=20)
BODY = st.dictionaries(NAMES, NESTED, max_size=6)


def scanned(scanner: Scanner, body: bytes, cuts: list[int]) -> Scanner:
    """A scanner that was fed the body in pieces."""
    at = 0
    for cut in sorted({min(cut, len(body)) for cut in cuts}):
        scanner.feed(body[at:cut])
        at = cut
    scanner.feed(body[at:])
    return scanner


def wanted(body: dict[str, Any]) -> dict[str, Any]:
    """What is there to be found."""
    return {key: None if isinstance(value, dict | list) else value for key, value in body.items() if key in KEYS}


@settings(max_examples=50)
@given(body=BODY, ascii_only=st.booleans(), spaced=st.booleans(), cuts=st.lists(st.integers(0, 400), max_size=5))
def test_json_keys_are_found_wherever_it_is_cut(
    body: dict[str, Any], ascii_only: bool, spaced: bool, cuts: list[int]
) -> None:
    text = json.dumps(body, ensure_ascii=ascii_only, indent=2 if spaced else None).encode("utf-8", "surrogatepass")
    assert scanned(JsonScanner(), text, cuts).found == wanted(json.loads(text))


@settings(max_examples=50)
@given(body=BODY, cuts=st.lists(st.integers(0, 400), max_size=5))
def test_message_pack_keys_are_found_wherever_it_is_cut(body: dict[str, Any], cuts: list[int]) -> None:
    data = msgpack.packb(body, unicode_errors="surrogatepass")
    found = scanned(MessagePackScanner(), data, cuts).found
    assert found == wanted(body)


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=4))
def test_bytes_of_any_kind_do_no_harm(data: bytes, cuts: list[int]) -> None:
    for kind in (JsonScanner, MessagePackScanner):
        scanned(kind(), data, cuts)
        scanned(kind(), b'{"model":' + data, cuts)
        scanned(kind(), b"\x82\xa5model" + data, cuts)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('{"model": "a"}', "a"),
        ('{"input": {"model": "no"}, "model": "a"}', "a"),
        ('{"input": ["model", "no"], "model": "a"}', "a"),
        (r'{"input": "\", \"model\": \"no", "model": "a"}', "a"),
        (r'{"input": "\\", "model": "a"}', "a"),
        (r'{"m\u006fdel": "a/\u0062"}', "a/b"),
        ('{"model" \n:\t"a" \n}', "a"),
        ('{"model": "first", "model": "a"}', "a"),
        ('{"model": ["a"]}', None),
        ('{"model": 5}', 5),
        ('{"input": "}", "model": "a"}', "a"),
        ('{"input": 1}, "model": "no"}', "nothing"),
        ('["model", "no"]', "nothing"),
        ('"model": "no"', "nothing"),
        ("", "nothing"),
        ('{"model": "%s"}' % ("a" * 5000), None),
    ],
)
def test_tricks(body: str, found: str | None) -> None:
    assert scanned(JsonScanner(), body.encode(), []).found.get("model", "nothing") == found
    assert scanned(JsonScanner(), body.encode(), list(range(len(body)))).found.get("model", "nothing") == found


LONG = "QUJD" * 1000
PNG = b"\x89PNG\r\n\x1a\n" + bytes(4000)


def pictured(url: object, *, text: str = "What is this?") -> dict[str, Any]:
    """A chat about one picture."""
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    return {"model": "m", "messages": [{"role": "user", "content": parts}], "max_tokens": 5}


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 400), max_size=6))
@pytest.mark.parametrize(
    ("body", "images"),
    [
        (json.dumps(pictured(f"data:image/png;base64,{LONG}")).encode(), 1),
        (json.dumps(pictured(f"data:image/png;base64,{LONG}")).replace("/", "\\/").encode(), 1),
        (json.dumps({"model": "m", "input": [f"data:image/jpeg;base64,{LONG}"] * 3}).encode(), 3),
        (json.dumps({"input": f"data:image/webp;base64,{LONG}", "model": "m"}).encode(), 1),
        (json.dumps(pictured("https://example.org/a.png", text=LONG)).encode(), 0),
        (json.dumps(pictured("x", text=f"see data:image/png;base64,{LONG}")).encode(), 0),
        (msgpack.packb(pictured(PNG)), 1),
        (msgpack.packb(pictured(f"data:image/png;base64,{LONG}")), 1),
        (
            msgpack.packb(
                {"model": "m", "input": [PNG, b"\xff\xd8\xff" + bytes(70_000), b"RIFF1234WEBP" + bytes(2000)]}
            ),
            3,
        ),
        (msgpack.packb({"model": "m", "input": [b"RIFF1234WAVE" + bytes(2000), LONG, b"text" * 600]}), 0),
    ],
)
def test_an_image_costs_what_images_do_and_not_its_bytes(body: bytes, images: int, cuts: list[int]) -> None:
    kind = JsonScanner if body.startswith(b"{") else MessagePackScanner
    scanner = scanned(kind(), body, cuts)
    assert scanner.images == images
    rest = len(body) - scanner.image_bytes
    assert images == 0 or rest < 400
    assert cost("/v1/embeddings", len(body), scanner) == -(-rest // 4) + images * TOKENS_OF_AN_IMAGE


def test_binary_inputs_are_passed_over_without_being_held() -> None:
    body = msgpack.packb({"input": [b"\xa5model" * 1_000_000], "model": "a", "stream": True})
    scanner = MessagePackScanner()
    for at in range(0, len(body), 65536):
        scanner.feed(body[at : at + 65536])
        assert len(scanner._rest) < 2048
    assert scanner.found == {"model": "a", "stream": True}


@pytest.mark.parametrize(
    ("kind", "scanner"),
    [
        ("application/json", JsonScanner),
        ("application/json; charset=utf-8", JsonScanner),
        ("Application/JSON", JsonScanner),
        ("application/vnd.api+json", JsonScanner),
        ("application/msgpack", MessagePackScanner),
        ("application/x-msgpack", MessagePackScanner),
        ("text/plain", type(None)),
        ("", type(None)),
    ],
)
def test_the_content_type_says_how_to_read(kind: str, scanner: type) -> None:
    assert type(scanner_for(kind)) is scanner


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"input": ["word " * 30] * 6000, "model": "a"}),
        json.dumps({"input": ['a\n"b" ' * 20] * 6000, "model": "a"}),
        json.dumps({"input": [[1, 2, 3, 4]] * 60000, "model": "a"}),
        json.dumps({"input": [0.123456] * 90000, "model": "a"}),
        '{"input":"' + "\\\\" * 450_000 + '","model":"a"}',
        '{"input":"' + '\\"' * 450_000 + '","model":"a"}',
        '{"input":' + "[" * 450_000 + "]" * 450_000 + ',"model":"a"}',
    ],
    ids=["texts", "escapes", "tokens", "floats", "backslashes", "quotes", "depth"],
)
def test_long_bodies_of_every_kind_are_passed_over(body: str) -> None:
    found = scanned(JsonScanner(), body.encode(), [65536, 65537, 300_000]).found
    assert found.get("model", "a") == "a"
    assert bool(found) == ("[[[[" not in body)  # which no engine would read either


@pytest.mark.parametrize("odd", [b",", b" ", b" ,", b", ,", b"1,", b'"', b"[],", b"\t\n"])
def test_no_body_takes_longer_per_byte_than_another(odd: bytes) -> None:
    def seconds(piece: bytes) -> float:
        body = b'{"model":"m",' + piece * ((1 << 17) // len(piece))
        began = time.process_time()
        scanned(JsonScanner(), body, list(range(16384, len(body), 16384)))
        return time.process_time() - began

    plain = seconds(b'"key": 1, ')
    assert seconds(odd) < 20 * (plain + 0.02)
