"""Foreign units of every kind, taken out of the boot and given back exactly as they were, on a box with systemd."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from places import BASE, worker

from fleetctl.lab.lab import Lab
from fleetctl.remote.connection import BoxConnection, connect
from fleetctl.remote.errors import OpFailed
from fleetctl.spec.fleet import Box

PATIENCE = 30.0  # seconds; only ever spent by a test that fails
ETC, LIB = "/etc/systemd/system", "/usr/lib/systemd/system"
RUN = "[Service]\nExecStart=/bin/sleep infinity\n"
BOOT = "[Install]\nWantedBy=multi-user.target\n"
ACCEPTS = "import socket,time; socket.socket(fileno=3); time.sleep(10**6)"


@dataclass(frozen=True)
class Kind:
    """A way in which units came to run on a box: their files, and the commands after daemon-reload."""

    units: tuple[str, ...]
    files: dict[str, str]
    commands: str


KINDS = {
    "enabled": Kind(
        ("old-plain.service",),
        {f"{ETC}/old-plain.service": RUN + BOOT},
        "systemctl enable --now old-plain.service",
    ),
    "enabled, in a package": Kind(
        ("old-pack.service",),
        {f"{LIB}/old-pack.service": RUN + BOOT},
        "systemctl enable --now old-pack.service",
    ),
    "enabled by its path": Kind(
        ("old-l.service",),
        {"/opt/old/old-l.service": RUN + BOOT},
        "systemctl enable --now /opt/old/old-l.service",
    ),
    "linked": Kind(
        ("old-linked.service",),
        {"/opt/old/old-linked.service": RUN + BOOT},
        "systemctl link /opt/old/old-linked.service; systemctl start old-linked.service",
    ),
    "linked until the next boot": Kind(
        ("old-linkrun.service",),
        {"/opt/old/old-linkrun.service": RUN},
        "systemctl link --runtime /opt/old/old-linkrun.service; systemctl start old-linkrun.service",
    ),
    "an alias alone": Kind(
        ("old-nick.service",),
        {f"{ETC}/old-alias.service": RUN + BOOT + "Alias=old-nick.service\n"},
        "systemctl enable --now old-alias.service",
    ),
    "an alias and its real name": Kind(
        ("old-nick2.service", "old-alias2.service"),
        {f"{ETC}/old-alias2.service": RUN + BOOT + "Alias=old-nick2.service\n"},
        "systemctl enable --now old-alias2.service",
    ),
    "an alias without [Install]": Kind(
        ("old-nick3.service",),
        {f"{ETC}/old-alias3.service": RUN},
        f"ln -s old-alias3.service {ETC}/old-nick3.service; systemctl daemon-reload;"
        "systemctl add-wants multi-user.target old-nick3.service; systemctl start old-nick3.service",
    ),
    "enabled until the next boot": Kind(
        ("old-runtime.service",),
        {f"{ETC}/old-runtime.service": RUN + BOOT},
        "systemctl enable --runtime --now old-runtime.service",
    ),
    "wanted without [Install]": Kind(
        ("old-wanted.service",),
        {f"{ETC}/old-wanted.service": RUN},
        "systemctl add-wants multi-user.target old-wanted.service; systemctl start old-wanted.service",
    ),
    "required without [Install]": Kind(
        ("old-required.service",),
        {f"{ETC}/old-required.service": RUN, f"{ETC}/old-own.target": "[Unit]\n"},
        "systemctl add-requires old-own.target old-required.service; systemctl start old-required.service",
    ),
    "an instance of a template": Kind(
        ("old-t@a.service",),
        {f"{ETC}/old-t@.service": RUN + BOOT},
        "systemctl enable --now old-t@a.service old-t@b.service",
    ),
    "a socket and its service": Kind(
        ("old-s.service", "old-s.socket"),
        {
            f"{ETC}/old-s.service": f"[Service]\nExecStart=python3 -c '{ACCEPTS}'\n" + BOOT,
            f"{ETC}/old-s.socket": "[Socket]\nListenStream=/run/old-s.sock\n[Install]\nWantedBy=sockets.target\n",
        },
        "systemctl enable --now old-s.socket; systemctl enable --now old-s.service",
    ),
    "a path and its service": Kind(
        ("old-p.service", "old-p.path"),
        {
            f"{ETC}/old-p.service": RUN,
            f"{ETC}/old-p.path": "[Path]\nPathExists=/etc/passwd\n[Install]\nWantedBy=paths.target\n",
        },
        "systemctl enable --now old-p.path; systemctl start old-p.service",
    ),
    "a timer and its service": Kind(
        ("old-w.service", "old-w.timer"),
        {
            f"{ETC}/old-w.service": RUN,
            f"{ETC}/old-w.timer": "[Timer]\nOnActiveSec=1s\nOnUnitInactiveSec=1s\n" + BOOT,
        },
        "systemctl enable --now old-w.timer; systemctl start old-w.service",
    ),
    "a target and what it wants": Kind(
        ("old-g.service", "old-g.target"),
        {f"{ETC}/old-g.service": RUN, f"{ETC}/old-g.target": "[Unit]\nWants=old-g.service\n" + BOOT},
        "systemctl enable --now old-g.target",
    ),
    "enabled and stopped": Kind(
        ("old-idle.service",),
        {f"{ETC}/old-idle.service": RUN + BOOT},
        "systemctl enable old-idle.service",
    ),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    net = 90 + worker()
    lab = Lab(
        tmp_path_factory.mktemp("superseded") / "lab",
        bridge=f"fleetsuper{worker()}",
        subnet=f"10.77.{net}.0/24",
        link_subnet=f"10.78.{net}.0/24",
        base=BASE,
    )
    try:
        lab.up(1)
        yield lab
    finally:
        lab.down()


@pytest.fixture(scope="module")
def box(lab: Lab) -> Iterator[BoxConnection]:
    ssh = {"user": "root", "key": str(lab.key), "known_hosts": str(lab.known_hosts)}
    wanted = {"address": lab.box("box1").address, "memory": "1GiB", "reserve": "0GiB", "ssh": ssh}
    with connect("box1", Box.model_validate(wanted)) as connection:
        yield connection


def sh(box: BoxConnection, command: str, stdin: str = "") -> str:
    return box.run("sh", "-c", command, stdin=stdin, check=False).out


def put(box: BoxConnection, kind: Kind) -> None:
    for path, text in kind.files.items():
        sh(box, f"mkdir -p $(dirname {path}); cat > {path}", text)
    box.run("sh", "-ec", f"systemctl daemon-reload; {kind.commands}")


def links(box: BoxConnection) -> list[str]:
    return sh(box, f"find {ETC} /run/systemd/system -type l -printf '%p %l\\n' | sort").splitlines()


def words(box: BoxConnection, units: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Unit → what ``is-enabled`` and ``is-active`` say."""
    ask = 'echo "$(systemctl is-enabled $u) $(systemctl is-active $u)"'
    told = [line.split(" ") for line in sh(box, f"for u in {' '.join(units)}; do {ask}; done").splitlines()]
    return {unit: (enabled, active) for unit, (enabled, active) in zip(units, told, strict=True)}


def boot(box: BoxConnection) -> set[str]:
    """All that systemd would start at boot."""
    return set(sh(box, "systemctl list-dependencies --all --plain default.target").split())


def recorded(box: BoxConnection, units: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """State of the units as a move keeps it on the box."""
    box.call("superseded_record", states=box.call("superseded_states", units=list(units)))
    known = box.call("superseded_read")
    box.call("superseded_forget", units=list(units))
    return dict(known)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_unit_goes_from_the_boot_and_comes_back_as_it_was(box: BoxConnection, kind: Kind) -> None:
    put(box, kind)
    before = links(box), words(box, kind.units)
    states = recorded(box, kind.units)
    real = {state["id"] for state in states.values()}
    box.call("supersede", units=list(kind.units))
    seen = words(box, kind.units)
    assert {active for _, active in seen.values()} == {"inactive"}, seen
    assert not {word for word, _ in seen.values()} & {"enabled", "enabled-runtime", "alias"}, seen
    assert not boot(box) & (real | set(kind.units))
    told = box.call("unsupersede", prior=states)
    assert told["not_restored"] == {}
    assert (links(box), words(box, kind.units)) == before
    assert box.call("unsupersede", prior=states)["not_restored"] == {}, "a second time changes nothing"
    assert (links(box), words(box, kind.units)) == before
    box.call("supersede", units=list(kind.units))


def test_the_other_instances_of_a_template_stay(box: BoxConnection) -> None:
    put(box, KINDS["an instance of a template"])
    box.call("supersede", units=["old-t@a.service"])
    assert words(box, ("old-t@b.service",)) == {"old-t@b.service": ("enabled", "active")}


def test_a_socket_comes_back_although_its_service_still_runs(box: BoxConnection) -> None:
    kind = KINDS["a socket and its service"]
    put(box, kind)
    before = words(box, kind.units)
    states = recorded(box, kind.units)
    sh(box, "systemctl stop old-s.socket")
    assert words(box, ("old-s.service",))["old-s.service"][1] == "active"
    assert box.call("unsupersede", prior=states)["not_restored"] == {}
    assert words(box, kind.units) == before
    box.call("supersede", units=list(kind.units))


def test_a_masked_unit_that_ran_is_stopped_and_said_not_to_come_back(box: BoxConnection) -> None:
    put(box, Kind((), {f"{LIB}/old-mask.service": RUN + BOOT}, "systemctl enable --now old-mask.service"))
    put(box, KINDS["enabled"])
    sh(box, "systemctl mask old-mask.service")
    units = ("old-mask.service", "old-plain.service")
    before = links(box)
    assert words(box, units)["old-mask.service"] == ("masked", "active")
    states = recorded(box, units)
    box.call("supersede", units=list(units))
    told = box.call("unsupersede", prior=states)["not_restored"]
    assert list(told) == ["old-mask.service"]
    assert "unmask" in told["old-mask.service"]
    assert links(box) == before
    assert words(box, units) == {"old-mask.service": ("masked", "inactive"), "old-plain.service": ("enabled", "active")}


def test_units_that_cannot_come_back_do_not_keep_the_others(box: BoxConnection) -> None:
    broken = ("old-gone.service", "old-fails.service", "old-taken.service", "old-barred.service", "old-plain.service")
    for unit in broken[:4]:
        put(box, Kind((), {f"{ETC}/{unit}": RUN + BOOT}, f"systemctl enable --now {unit}"))
    put(box, KINDS["enabled"])
    barrier = {f"{ETC}/old-barrier.target": "[Unit]\n"}
    put(box, Kind((), barrier, "systemctl add-wants old-barrier.target old-barred.service"))
    states = recorded(box, broken)
    box.call("supersede", units=list(broken))
    sh(box, f"rm {ETC}/old-gone.service; sed -i s,/bin/sleep,/bin/false, {ETC}/old-fails.service")
    sh(box, f"echo mine > {ETC}/multi-user.target.wants/old-taken.service; systemctl daemon-reload")
    sh(box, f"touch {ETC}/old-barrier.target.wants")
    told = box.call("unsupersede", prior=states)["not_restored"]
    assert sorted(told) == ["old-barred.service", "old-fails.service", "old-gone.service", "old-taken.service"]
    assert f"{ETC}/old-gone.service is gone" in told["old-gone.service"]
    assert "cannot be made" in told["old-barred.service"]
    assert "failed" in told["old-fails.service"]
    assert "old-taken.service is something else" in told["old-taken.service"]
    assert words(box, ("old-plain.service",)) == {"old-plain.service": ("enabled", "active")}
    assert not [link for link in links(box) if "old-gone" in link]
    sh(
        box,
        f"rm {ETC}/multi-user.target.wants/old-taken.service {ETC}/old-barrier.target.wants; systemctl daemon-reload",
    )


def test_a_unit_that_the_boot_starts_without_a_link_of_the_administrator_is_refused(box: BoxConnection) -> None:
    wants = f"{LIB}/multi-user.target.wants"
    put(box, Kind((), {f"{LIB}/old-vendor.service": RUN}, f"mkdir -p {wants}; ln -s ../old-vendor.service {wants}/"))
    sh(box, "systemctl daemon-reload; systemctl start old-vendor.service")
    with pytest.raises(OpFailed, match=r"multi-user\.target pulls it in.*systemctl mask old-vendor"):
        box.call("supersede", units=["old-vendor.service"])
    sh(box, f"rm {wants}/old-vendor.service; systemctl daemon-reload")


def test_what_was_given_back_survives_a_reboot_like_before(lab: Lab, box: BoxConnection) -> None:
    """The last test: it reboots the box."""
    names = ["enabled by its path", "an alias alone", "wanted without [Install]", "a socket and its service"]
    kinds = [KINDS[name] for name in names]
    units = tuple(unit for kind in kinds for unit in kind.units)
    for kind in kinds:
        put(box, kind)
    before = words(box, units)
    states = recorded(box, units)
    box.call("supersede", units=list(units))
    lab.reboot("box1")
    box.reconnect()
    assert {active for _, active in words(box, units).values()} == {"inactive"}
    assert box.call("unsupersede", prior=states)["not_restored"] == {}
    assert words(box, units) == before
    lab.reboot("box1")
    box.reconnect()
    deadline = time.monotonic() + PATIENCE
    while words(box, units) != before:
        assert time.monotonic() < deadline, (words(box, units), before)
        time.sleep(0.2)
