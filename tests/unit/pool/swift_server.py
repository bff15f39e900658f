"""OpenStack Swift with its S3 interface, all of it in one process: a store that checks signatures and keeps files.

``python swift_server.py FOLDER PORT USER KEY BUCKET`` serves S3 at 127.0.0.1:PORT for an access key ``test:USER`` with
its secret, and makes the bucket. It says ``ready`` once it does. Swift is on PyPI: https://docs.openstack.org/swift/
"""

# ruff: noqa: E402 - eventlet has to come first, and Swift reads its settings when it is imported
from __future__ import annotations

import sys
from pathlib import Path

import eventlet

eventlet.monkey_patch()

import eventlet.wsgi
from swift.common import utils

PARTS = ("account", "container", "object")
PIPELINE = "listing_formats s3api tempauth slo proxy-server"
PROXY = """
[DEFAULT]
swift_dir = {folder}
[pipeline:main]
pipeline = {pipeline}
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
log_name = proxy
node_timeout = 30
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_{user} = {key} .admin
[filter:slo]
use = egg:swift#slo
"""
PART = """
[DEFAULT]
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
fallocate_reserve = 0
disable_fallocate = true
[pipeline:main]
pipeline = {part}-server
[app:{part}-server]
use = egg:swift#{part}
"""


def main(folder: Path, port: int, user: str, key: str, bucket: str) -> None:
    (folder / "devices/disk").mkdir(parents=True, exist_ok=True)
    (folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = test\n")
    utils.set_swift_dir(str(folder))

    from swift.common.http_protocol import SwiftHttpProtocol
    from swift.common.ring import RingBuilder
    from swift.common.storage_policy import reload_storage_policies
    from swift.common.swob import Request
    from swift.common.wsgi import loadapp

    reload_storage_policies()
    listening = {part: eventlet.listen(("127.0.0.1", 0)) for part in PARTS}
    for part, one in listening.items():
        rings = RingBuilder(1, 1, 0)
        place = {"ip": "127.0.0.1", "port": one.getsockname()[1], "device": "disk"}
        replication = {f"replication_{name}": place[name] for name in ("ip", "port")}
        rings.add_dev({"id": 0, "region": 1, "zone": 1, "weight": 1, **place, **replication})
        rings.rebalance()
        rings.get_ring().save(str(folder / f"{part}.ring.gz"))
    texts = {part: PART.format(folder=folder, part=part) for part in PARTS}
    texts["proxy"] = PROXY.format(folder=folder, pipeline=PIPELINE, user=user, key=key)
    for part, text in texts.items():
        (folder / f"{part}.conf").write_text(text)
        app = loadapp(str(folder / f"{part}.conf"), allow_modify_pipeline=part == "proxy")
        sock = listening.get(part) or eventlet.listen(("127.0.0.1", port), backlog=512)
        eventlet.spawn(eventlet.wsgi.server, sock, app, protocol=SwiftHttpProtocol, log_output=False)
    ask = {"REQUEST_METHOD": "PUT", "swift.authorize_override": True, "swift.authorize": lambda request: None}
    made = Request.blank(f"/v1/AUTH_test/{bucket}", environ=ask).get_response(app)  # a bucket is a container here
    assert made.status_int in (201, 202), made.status
    print("ready", flush=True)
    eventlet.hubs.get_hub().switch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
