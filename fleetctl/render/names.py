"""Names and paths that fleetctl gives to things on a box."""

from __future__ import annotations

from fleetctl.errors import SpecError
from fleetctl.spec.fleet import Fleet

UNIT_FOLDER = "/etc/systemd/system"
PYTHON = "/usr/bin/python3"
BIN_FOLDER = "/etc/fleetctl/bin"
SECRETS_FOLDER = "/etc/fleetctl/secrets"
PROXY_FOLDER = "/etc/fleetctl/proxy"
PROXY_UNIT = "fleetctl-proxy.service"
FIREWALL_UNIT = "fleetctl-firewall.service"
FIREWALL_FILE = "/etc/fleetctl/firewall.nft"
PROXY_STATES = "/var/lib/fleetctl/proxy-servers"
VRRP_FOLDER = "/etc/fleetctl/vrrp"
VRRP_UNIT = "fleetctl-vrrp.service"
GUARD_FOLDER = "/etc/fleetctl/guard"
GUARD_UNIT = "fleetctl-guard.service"
LORAS_FOLDER = "/var/lib/fleetctl/loras"
LORA_NAMES = f"{LORAS_FOLDER}/names"
GATEWAY_LORAS = f"{LORAS_FOLDER}/.gateway"
"""Folder with the same for gateways, which are no users that may look into the one above."""
TRIAL_UNIT = "fleetctl-trial.service"
POOL_FOLDER = "/etc/fleetctl/pool"
PROGRAMS_FOLDER = "/var/lib/fleetctl/programs"
NATS_UNIT = "fleetctl-nats.service"
GATEWAY_UNIT = "fleetctl-gateway.service"
WORKER_UNIT = "fleetctl-worker.service"
BATCH_UNIT = "fleetctl-batch.service"
POOL_UNITS = (GATEWAY_UNIT, WORKER_UNIT, BATCH_UNIT, NATS_UNIT)
"""Of a pool, in the order in which they stop."""
POOL_STOP_LIMITS = {"nats": 30, "worker": 90, "gateway": 130, "batch": 90}
"""Part of a pool → seconds that its unit has to stop (TimeoutStopSec=)."""
LOOPBACK = "127.0.0.1"
"""Where workers listen, and engines of a pool that know no Unix sockets: only their own box has business there."""
RUN_FOLDER = "fleetctl"
"""Below /run (RuntimeDirectory=): a folder for each unit that has a Unix socket. Only root can enter those."""
UNIX = "unix:"
"""In an address: what follows is the path of a Unix socket."""
WORKER_RUN = f"{RUN_FOLDER}/worker"
CONTROL_SOCKET = f"/run/{WORKER_RUN}/control.sock"
"""Where a worker is told what to load, and takes requests past the queue."""


def engine_unit(layout: str, model: str) -> str:
    """Name of the unit that runs a model in a layout; the same on every box."""
    return f"fleetctl-{layout}-{model}.service"


def socket_folder(layout: str, model: str) -> str:
    """RuntimeDirectory= of an engine that listens on a Unix socket."""
    return f"{RUN_FOLDER}/{layout}-{model}"


def engine_socket(layout: str, model: str) -> str:
    """Path of that socket: 89 characters at most, where the kernel takes 107."""
    return f"/run/{socket_folder(layout, model)}/engine.sock"


def server_name(layout: str, box: str) -> str:
    """Name of the HAProxy server for an engine of a layout whose head is on a box."""
    return f"{layout}-{box}"


def secrets_path(layout: str, model: str) -> str:
    """The EnvironmentFile= of an engine; only root can read it."""
    return f"{SECRETS_FOLDER}/{layout}-{model}.env"


def engine_units_on(fleet: Fleet, box: str) -> dict[str, list[str]]:
    """layout → units of its engines on a box, in the order of the file."""
    return {
        layout: [engine_unit(layout, model) for model, placement in models.items() if box in placement.boxes]
        for layout, models in fleet.layouts.items()
    }


def check_names(fleet: Fleet) -> None:
    """Refuse names that run into each other once joined by a dash. Raises SpecError naming both."""
    units: dict[str, str] = {}
    servers: dict[str, str] = {}
    for layout, models in fleet.layouts.items():
        for model in models:
            where = f"model {model} in layout {layout}"
            other = units.setdefault(engine_unit(layout, model), where)
            if other != where:
                raise SpecError(
                    f"{other} and {where} would both be {engine_unit(layout, model)}",
                    hint="rename one of them",
                )
        for box in fleet.boxes:
            where = f"box {box} in layout {layout}"
            other = servers.setdefault(server_name(layout, box), where)
            if other != where:
                raise SpecError(
                    f"{other} and {where} would both be the HAProxy server {server_name(layout, box)}",
                    hint="rename one of them",
                )
