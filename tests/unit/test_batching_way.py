"""The way to a box's NATS over a real SSH connection: made anew when it breaks."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from planned import office
from remote_sshd import Sshd, needs_sshd

from fleetctl.errors import SpecError
from fleetctl.pool.batch.away import Patience
from fleetctl.remote.boxes import Boxes
from fleetctl.run.batching import boxes_of, connected, renewing, straight, targets_of, way
from fleetctl.run.subject import Subject
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.secret import Secret

sys.path.append(str(Path(__file__).parent / "pool"))

from natsserver import NatsServer, needs_nats, running

ROLES = "authorization { users: [{user: operator, password: right}] }"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running(tmp_path, ROLES) as server:
        yield server


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    server = Sshd(tmp_path / "sshd")
    yield server
    server.stop()


def subject_of(sshd: Sshd, port: int, password: Path) -> Subject:
    """A fleet of one box, which runs NATS at that port."""
    passwords = SimpleNamespace(operator=Secret(file=str(password)))
    nats = SimpleNamespace(boxes=("spark1",), port=port, passwords=passwords, tls=None, store=1 << 30)
    pool = SimpleNamespace(nats=nats)
    fleet = cast(Fleet, SimpleNamespace(boxes={"spark1": sshd.box()}, pool=pool))
    return Subject(fleet, "", Boxes({"spark1": sshd.connect()}))


@needs_nats
@needs_sshd
def test_nats_is_reached_through_ssh_and_again_when_the_connection_broke(
    server: NatsServer, sshd: Sshd, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("right\n")
    subject = subject_of(sshd, server.port, tmp_path / "password")
    heard: list[float] = []

    async def asked() -> None:
        with way(subject) as there:
            assert there.access.user == "operator" and "right" not in repr(there.access)
            renew = renewing(there)

            async def hear(away: float) -> None:
                heard.append(away)
                await renew(100 * away)  # what takes seconds otherwise

            async with connected(there) as client:
                js = client.jetstream(timeout=0.5)
                assert (await js.account_info()).streams == 0
                for session in sshd.sessions():
                    session.kill()
                began = time.monotonic()
                assert (await Patience(hear).call(js.account_info)).streams == 0
                assert heard[-1] == 0.0 and len(heard) > 1, time.monotonic() - began

    with subject.boxes:
        asyncio.run(asked())


def test_a_fleet_without_a_pool_has_no_jobs() -> None:
    with pytest.raises(SpecError, match="has no `pool:`"):
        boxes_of(office())


def test_models_are_known_by_all_of_their_names() -> None:
    fleet = office()
    key, entry = next(iter(fleet.models.items()))
    targets = targets_of(fleet, None)
    assert {targets.key_of(name) for name in (key, *entry.served_as)} == {key}
    assert targets_of(fleet, key).chosen == key
    with pytest.raises(SpecError, match="--model nonsense: no such model"):
        targets_of(fleet, "nonsense")


@pytest.mark.parametrize("url", ["nats://[::1", "nats://h:99999999", "nats://h/path", "nats://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match="--nats"):
        straight(url, None)


def test_a_url_keeps_its_address_and_not_its_user() -> None:
    found: Any = straight("tls://ann@[::1]:5", "word")
    assert (found.access.servers, found.access.user) == (("tls://[::1]:5",), "ann")
    assert straight("nats://h", None).access.servers == ("nats://h:4222",)
