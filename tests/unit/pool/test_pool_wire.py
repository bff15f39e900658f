"""What travels between the programs of a pool, there and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.pool import wire

ENVELOPE = wire.Envelope("r1", "minilm", "/v1/embeddings", "answer.g.r1", 1_700_000_000_000, 3)
WORKER = wire.WorkerConfig(
    "spark1",
    wire.NatsAccess(("nats://10.0.0.1:4222",), "worker", "/etc/fleetctl/pool/worker.password"),
    wire.Listen("127.0.0.1", 8091),
    64 << 30,
    (wire.PoolEngine("minilm", "embed", ("all-minilm",), "fleetctl-pool-minilm.service", "unix:/run/minilm.sock"),),
)
GATEWAY = wire.GatewayConfig(
    "spark1",
    wire.NatsAccess(("nats://10.0.0.1:4222",)),
    wire.Listen("10.0.0.1", 8090),
    (wire.PoolModel("minilm", "embed", ("all-minilm", "minilm")),),
)


@given(body=st.binary(max_size=2000), model=st.text(), stream=st.booleans(), cost=st.integers(0, 1 << 40))
def test_a_request_comes_out_as_it_went_in(body: bytes, model: str, stream: bool, cost: int) -> None:
    envelope = wire.Envelope("id", model, "/v1/completions", "answer.g.id", 1, len(body), cost=cost, stream=stream)
    assert wire.unpack(envelope.pack(body)) == (envelope, body)


@given(body=st.binary(max_size=2000), kind=st.sampled_from(wire.Kind), status=st.integers(100, 599))
def test_a_frame_comes_out_as_it_went_in(body: bytes, kind: wire.Kind, status: int) -> None:
    frame = wire.Frame(kind, body, status, "text/event-stream", "spark1")
    assert wire.unpack_frame(frame.pack()) == frame


@given(st.binary(max_size=300))
def test_other_bytes_are_refused_and_never_taken_for_a_message(data: bytes) -> None:
    for read in (wire.unpack, wire.unpack_frame):
        try:
            read(data)
        except wire.WireError as error:
            assert "cannot be read" in str(error)


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_message_that_ends_early_is_refused(cut: int) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack(ENVELOPE.pack()[:cut])


@given(st.text(min_size=1), st.text(min_size=1))
def test_every_model_has_a_subject_of_its_own(one: str, other: str) -> None:
    assert (wire.subject(one) == wire.subject(other)) == (one == other)
    assert not set(" .*>\t\r\n") & set(wire.token(one))


def test_configurations_are_read_as_they_were_written() -> None:
    assert wire.worker_config(json.loads(json.dumps(wire.as_json(WORKER)))) == WORKER
    assert wire.gateway_config(json.loads(json.dumps(wire.as_json(GATEWAY)))) == GATEWAY


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"surprise": 1}, "has no surprise"),
        ({"nats": 5}, "NatsAccess in a configuration has to be an object"),
        ({"nats": {"servers": [], "passwrd_file": "x"}}, "has no passwrd_file"),
        ({"engines": [{}]}, "PoolEngine in a configuration cannot be read"),
    ],
)
def test_a_configuration_with_something_else_in_it_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(wire.WireError, match=said):
        wire.worker_config({**wire.as_json(WORKER), **change})
