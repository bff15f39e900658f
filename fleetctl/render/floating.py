"""The floating address of a proxy on several boxes: what makes keepalived put it on one of them."""

from __future__ import annotations

from fleetctl.render.escape import exec_line
from fleetctl.render.names import PYTHON, UNIT_FOLDER, VRRP_FOLDER
from fleetctl.render.proxy import VRRP_RUN
from fleetctl.render.release import File, ProxyConfig
from fleetctl.render.template import fill
from fleetctl.resources import root_text

CONFIG = f"{VRRP_FOLDER}/keepalived.conf"
SCRIPT = f"{VRRP_FOLDER}/vrrp.py"
HIGHEST_PRIORITY = 200  # of the first box; it decides only between boxes that start at the same time


def vrrp_files(config: ProxyConfig, box: str) -> tuple[File, ...]:
    """Unit, configuration and scripts of keepalived on one of the proxy's boxes; none where the address is a box's."""
    if config.floating is None:
        return ()
    unit = fill(
        "systemd",
        "vrrp.service.j2",
        address=config.floating.address,
        box=box,
        proxy_unit=config.unit,
        python=PYTHON,
        script=SCRIPT,
        config=CONFIG,
        run_name=VRRP_RUN.removeprefix("/run/"),
    )
    return (
        File(path=f"{UNIT_FOLDER}/{config.vrrp_unit}", content=unit),
        File(path=CONFIG, content=keepalived_config(config, box)),
        File(path=SCRIPT, content=root_text("systemd", "vrrp.py"), mode=0o755),
        File(path=f"{VRRP_FOLDER}/alive.py", content=root_text("systemd", "alive.py"), mode=0o755),
    )


def keepalived_config(config: ProxyConfig, box: str) -> str:
    """Text of keepalived.conf on a box, but for the interface, which only the box knows."""
    assert config.floating is not None
    return fill(
        "keepalived",
        "keepalived.conf.j2",
        box=box,
        marker="@INTERFACE@",
        alive=exec_line([PYTHON, "-IS", f"{VRRP_FOLDER}/alive.py", config.admin_socket]),
        run_folder=VRRP_RUN,
        router_id=config.floating.router_id,
        address=config.floating.address,
        priority=HIGHEST_PRIORITY - config.boxes.index(box),
        own=config.own[box],
        peers=[address for name, address in config.own.items() if name != box],
    )
