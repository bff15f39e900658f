#!/usr/bin/python3
"""The floating address of the proxy on this box: keepalived, on the right interface.

    vrrp.py run CONFIG      fill in the interface, and become keepalived
    vrrp.py fill CONFIG     fill in the interface for a keepalived that is about to reload
    vrrp.py check CONFIG    fill in the interface, and let keepalived read the result; nothing is started

CONFIG says which address of this box its keepalived speaks from (unicast_src_ip). The interface is the one that has it.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

MARKER = "@INTERFACE@"
KEEPALIVED = "/usr/sbin/keepalived"
RUN = "/run/fleetctl-vrrp"
TARGET = RUN + "/keepalived.conf"


def interface_of(address):
    """Name of the interface that has an address. SystemExit when none has."""
    shown = subprocess.run(["ip", "-j", "address", "show"], stdout=subprocess.PIPE, check=True).stdout
    for link in json.loads(shown):
        if any(one.get("local") == address for one in link.get("addr_info", ())):
            return link["ifname"]
    raise SystemExit("no interface of this box has the address %s (yet)" % address)


def filled(path):
    """The configuration with the interface in it."""
    with open(path) as source:
        text = source.read()
    own = re.search(r"^ *unicast_src_ip (\S+)$", text, re.MULTILINE)
    if own is None:
        raise SystemExit("%s does not say which address is this box's own" % path)
    return text.replace(MARKER, interface_of(own.group(1)))


def fill(path):
    """Write the filled configuration where the unit's keepalived reads it."""
    with open(TARGET + ".new", "w") as file:
        file.write(filled(path))
    os.replace(TARGET + ".new", TARGET)


def run(path):
    """Become keepalived: in the foreground, VRRP only. What it logs to syslog is in the journal of the unit."""
    fill(path)
    pids = ["--pid=%s/keepalived.pid" % RUN, "--vrrp_pid=%s/vrrp.pid" % RUN]
    os.execv(KEEPALIVED, [KEEPALIVED, "--dont-fork", "--vrrp", "--use-file=" + TARGET, *pids])


def check(path):
    """What keepalived says of the configuration, as an exit status."""
    with tempfile.NamedTemporaryFile("w", prefix="fleetctl-vrrp-") as file:
        file.write(filled(path))
        file.flush()
        said = subprocess.run(
            [KEEPALIVED, "--vrrp", "--config-test", "--use-file=" + file.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        sys.stderr.write(said.stdout.decode("utf-8", "replace").replace(file.name, path))
        return said.returncode


if __name__ == "__main__":
    sys.exit({"run": run, "fill": fill, "check": check}[sys.argv[1]](sys.argv[2]))
