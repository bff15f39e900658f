"""The pool of a layout: its queue, gateways and workers as units and configurations, and its engines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fleetctl.engine.runtimes.command import served_names, task_of
from fleetctl.engine.runtimes.encoder import batch_tokens
from fleetctl.engine.runtimes.flags import flag_values
from fleetctl.pool import wire
from fleetctl.pool.batch.room import Proxied
from fleetctl.render.backends import backend_of
from fleetctl.render.engine import Place, cannot_share, concurrency, runtime_of
from fleetctl.render.names import (
    BATCH_UNIT,
    CONTROL_SOCKET,
    GATEWAY_LORAS,
    GATEWAY_UNIT,
    LOOPBACK,
    NATS_UNIT,
    POOL_FOLDER,
    POOL_STOP_LIMITS,
    PYTHON,
    UNIT_FOLDER,
    UNIX,
    WORKER_RUN,
    WORKER_UNIT,
    engine_unit,
)
from fleetctl.render.ports import EVERY_ADDRESS
from fleetctl.render.programs import folder_of, pool_bundle, program_bundles
from fleetctl.render.release import Bundle, File, Lodger, Service
from fleetctl.render.template import fill
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_pool import Nats, Pool

STATE = "fleetctl-nats"
STREAMS = (wire.WORK, wire.BATCH, wire.RESULTS, wire.DEAD, f"OBJ_{wire.BODIES}")
BATCH_TOKENS = 8192
LORAS_SEEN = "/run/fleetctl-loras"
"""Where a gateway sees the folder with the names of LoRA adapters."""
SHARE_OF_BODIES = 2
"""Long bodies take at most one part in so many of the store."""


def pool_files(
    fleet: Fleet, layout: str, box: str, lodgers: tuple[Lodger, ...], memory: int, weights: Mapping[str, int]
) -> tuple[tuple[Service, ...], tuple[File, ...]]:
    """Programs of the pool on a box and their files; none where it has no part in the pool.

    The queue is there in every layout, and so is the runner of batch jobs for models that are in no pool.

    ``lodgers`` are the engines that the box can load, ``memory`` the bytes that they may take together, and ``weights``
    the bytes of each model's weights as far as they are known.
    """
    pool = fleet.pool
    if pool is None:
        return (), ()
    made: list[tuple[Service, tuple[File, ...]]] = []
    if box in pool.nats.boxes:
        made.append(_nats(fleet, pool.nats, box))
    if lodgers:
        made.append(_worker(fleet, pool, layout, box, lodgers, memory, weights))
    if box in fleet.gateways and fleet.pool_models(layout):
        made.append(_gateway(fleet, pool, layout, box))
    if box in fleet.proxy.on and proxied_models(fleet, layout):
        made.append(_batch(fleet, pool, layout, box))
    return tuple(service for service, _ in made), tuple(file for _, files in made for file in files)


def _nats(fleet: Fleet, nats: Nats, box: str) -> tuple[Service, tuple[File, ...]]:
    address, tls, config = fleet.boxes[box].address, nats.tls, f"{POOL_FOLDER}/nats.conf"
    others = [name for name in nats.boxes if name != box]
    credentials = {"nats.conf": config}
    values: dict[str, Any] = {
        "name": box,
        "fleet": fleet.fleet,
        "listen": _endpoint(address, nats.port),
        "credentials": _credentials(NATS_UNIT),
        "store_dir": f"/var/lib/{STATE}",
        "store": nats.store,
        "tls": tls,
        "cluster": {"listen": _endpoint(address, nats.cluster_port)} if others else None,
        "streams": STREAMS,
        "bodies": wire.BODIES,
    }
    secrets = {role: getattr(nats.passwords, role) for role in ("gateway", "worker", "operator")}
    files = []
    if others and nats.passwords.cluster is not None:
        secrets["cluster"] = nats.passwords.cluster
        routes = [
            f'"nats://cluster:@secret:cluster@@{_endpoint(fleet.boxes[name].address, nats.cluster_port)}"'
            for name in others
        ]
        credentials["routes.conf"] = f"{POOL_FOLDER}/routes.conf"
        files.append(
            File(
                path=credentials["routes.conf"],
                content=f"routes: [{', '.join(routes)}]\n",
                mode=0o600,
                secrets={"cluster": nats.passwords.cluster},
                quoting="url",
            )
        )
    if tls is not None:
        credentials |= {"certificate": tls.certificate, "key": tls.key, **({"ca": tls.ca} if tls.ca else {})}
    text = fill("nats", "nats.conf.j2", **values)
    files.append(File(path=config, content=text, mode=0o600, secrets=secrets, quoting="string"))
    unit = fill(
        "systemd",
        "nats.service.j2",
        box=box,
        credentials=credentials,
        stop_limit=POOL_STOP_LIMITS["nats"],
        state=STATE,
        program=nats.program,
        config=f"{_credentials(NATS_UNIT)}/nats.conf",
    )
    return _service("nats", box, NATS_UNIT, (address, nats.port), nats.program, unit, files)


def _gateway(fleet: Fleet, pool: Pool, layout: str, box: str) -> tuple[Service, tuple[File, ...]]:
    models = tuple(
        wire.PoolModel(
            key=name,
            task=task_of(runtime_of(fleet, name), name, fleet.models[name]),
            served_as=served_names(name, fleet.models[name]),
            limit=pool.limit,
        )
        for name in fleet.pool_models(layout)
    )
    address = fleet.boxes[box].address
    loras = any(fleet.models[name].loras is not None for name in fleet.pool_models(layout))
    config = wire.GatewayConfig(
        name=box,
        nats=_access(fleet, pool.nats, "gateway", GATEWAY_UNIT),
        listen=wire.Listen(address, pool.port),
        models=models,
        deadline=pool.deadline,
        most_body=pool.most_body,
        store=pool.nats.store // SHARE_OF_BODIES,
        s3=_bucket(pool, GATEWAY_UNIT),
        adapters=f"{LORAS_SEEN}/names" if loras else "",
    )
    files, credentials = _program_files(fleet, "gateway", wire.as_json(config), "gateway")
    _add_keys(pool, files, credentials)
    seen = {"adapters": GATEWAY_LORAS if loras else "", "adapters_seen": LORAS_SEEN}
    unit = _program_unit("gateway", box, GATEWAY_UNIT, credentials, program_bundles(fleet), **seen)
    return _service("gateway", box, GATEWAY_UNIT, (address, pool.port), PYTHON, unit, files)


def _worker(
    fleet: Fleet,
    pool: Pool,
    layout: str,
    box: str,
    lodgers: tuple[Lodger, ...],
    memory: int,
    weights: Mapping[str, int],
) -> tuple[Service, tuple[File, ...]]:
    config = wire.WorkerConfig(
        box=box,
        nats=_access(fleet, pool.nats, "worker", WORKER_UNIT),
        listen=wire.Listen(LOOPBACK, pool.worker_port),
        control=CONTROL_SOCKET,
        memory=memory,
        engines=tuple(_engine(fleet, layout, box, lodger, weights) for lodger in lodgers),
        s3=_bucket(pool, WORKER_UNIT),
    )
    files, credentials = _program_files(fleet, "worker", wire.as_json(config), "worker")
    _add_keys(pool, files, credentials)
    place = Place(layout, lodgers[0].engine.model, box, 0, (box,), 0, 0.0)
    foreign, others = fleet.superseded_on(box), cannot_share(fleet, place)
    after = {*foreign, *(other for other in others if other < WORKER_UNIT)}
    refused = sorted({*others, *foreign})
    bundles = program_bundles(fleet)
    unit = _program_unit(
        "worker",
        box,
        WORKER_UNIT,
        credentials,
        bundles,
        conflicts=refused,
        after=after,
        runtime_directory=WORKER_RUN,
    )
    service, made = _service("worker", box, WORKER_UNIT, (LOOPBACK, pool.worker_port), PYTHON, unit, files)
    # It would take an engine that stops to be replaced for one that died: with the engines it starts again itself.
    units = tuple(f"{UNIT_FOLDER}/{lodger.engine.head.unit}" for lodger in lodgers)
    return service.model_copy(update={"paths": (*service.paths, *units)}), made


def proxied_models(fleet: Fleet, layout: str) -> list[str]:
    """Models of a layout that clients reach through the proxy alone, and that do what a batch job may ask for."""
    return [name for name in fleet.layouts[layout] if name not in fleet.pool_models(layout)]


def _batch(fleet: Fleet, pool: Pool, layout: str, box: str) -> tuple[Service, tuple[File, ...]]:
    from fleetctl.pool.batch.runner import RunnerConfig  # not before it is rendered: it brings the client of NATS

    models = tuple(
        Proxied(
            model=name,
            backend=backend_of(fleet, name),
            concurrency=max(concurrency(fleet, layout, name, seat) for seat in fleet.layouts[layout][name].boxes),
        )
        for name in proxied_models(fleet, layout)
    )
    proxy, keys = fleet.proxy, fleet.proxy.api_keys
    key = "batch" if "batch" in keys else next(iter(keys), None)
    listens = fleet.boxes[box].address if proxy.floating or proxy.address in EVERY_ADDRESS else fleet.proxy_address
    config = RunnerConfig(
        box=box,
        nats=_access(fleet, pool.nats, "worker", BATCH_UNIT),
        address=f"{'https' if proxy.tls else 'http'}://{_endpoint(listens, proxy.port)}",
        models=models,
        key_file=f"{_credentials(BATCH_UNIT)}/key" if key else "",
        floating=proxy.floating.address if proxy.floating else "",
    )
    files, credentials = _program_files(fleet, "batch", asdict(config), "worker")
    if key is not None:
        credentials["key"] = f"{POOL_FOLDER}/batch.key"
        content = f"@secret:{key}@\n"
        files.append(File(path=credentials["key"], content=content, mode=0o600, secrets={key: keys[key]}))
    unit = _program_unit("batch", box, BATCH_UNIT, credentials, (pool_bundle(),))
    return _service("batch", box, BATCH_UNIT, ("", 0), PYTHON, unit, files)


def _engine(fleet: Fleet, layout: str, box: str, lodger: Lodger, weights: Mapping[str, int]) -> wire.PoolEngine:
    engine, name = lodger.engine, lodger.engine.model
    size = fleet.models[name].weights_size
    return wire.PoolEngine(
        model=name,
        task=engine.task,
        served_as=engine.served_as,
        unit=engine_unit(layout, name),
        address=engine.address if engine.address.startswith(UNIX) else engine.url,
        runtime=engine.runtime,
        pinned=lodger.pinned,
        memory=lodger.memory,
        weights=size if size is not None else weights.get(name, 0),
        concurrency=concurrency(fleet, layout, name, box),
        batch_tokens=_batch_tokens(fleet, layout, name, box),
        context=engine.context,
        load_limit=engine.load_limit,
        stop_limit=engine.stop_limit,
    )


def _batch_tokens(fleet: Fleet, layout: str, name: str, box: str) -> int:
    """Tokens of one batch of an engine: what its arguments say, else what its kind takes."""
    model, placement = fleet.models[name], fleet.layouts[layout][name]
    words = (*model.arguments, *placement.arguments, *placement.boxes[box].arguments)
    given = flag_values(words, runtime_of(fleet, name).aliases)
    told = given.get("--max-batch-tokens") or given.get("--max-num-batched-tokens") or ""
    if told.isascii() and told.isdigit():
        return int(told[:9])
    return batch_tokens(model.context) if model.runtime == "encoder" else BATCH_TOKENS


def _access(fleet: Fleet, nats: Nats, role: str, unit: str) -> wire.NatsAccess:
    scheme = "tls" if nats.tls else "nats"
    return wire.NatsAccess(
        servers=tuple(f"{scheme}://{_endpoint(fleet.boxes[box].address, nats.port)}" for box in nats.boxes),
        user=role,
        password_file=f"{_credentials(unit)}/password",
        ca=f"{_credentials(unit)}/ca" if nats.tls and nats.tls.ca else "",
        replicas=len(nats.boxes),
    )


def _program_files(
    fleet: Fleet, program: str, config: Mapping[str, Any], role: str
) -> tuple[list[File], dict[str, str]]:
    """Configuration and password of a program, and what systemd hands over to it: name → path."""
    assert fleet.pool is not None
    nats = fleet.pool.nats
    paths = {"config": f"{POOL_FOLDER}/{program}.json", "password": f"{POOL_FOLDER}/{program}.password"}
    files = [
        File(path=paths["config"], content=json.dumps(config, indent=1) + "\n", mode=0o600),
        File(
            path=paths["password"],
            content=f"@secret:{role}@\n",
            mode=0o600,
            secrets={role: getattr(nats.passwords, role)},
        ),
    ]
    return files, {**paths, **({"ca": nats.tls.ca} if nats.tls and nats.tls.ca else {})}


def _bucket(pool: Pool, unit: str) -> wire.S3Access | None:
    """How a program reaches the bucket for long bodies."""
    if pool.bodies is None:
        return None
    return wire.S3Access(
        bucket=pool.bodies.bucket,
        prefix=pool.bodies.prefix,
        endpoint=(pool.bodies.endpoint or "").rstrip("/"),
        region=pool.bodies.region,
        access_key_file=f"{_credentials(unit)}/s3-access-key",
        secret_key_file=f"{_credentials(unit)}/s3-secret-key",
    )


def _add_keys(pool: Pool, files: list[File], credentials: dict[str, str]) -> None:
    """The keys of that bucket, among the files of a program and among what systemd hands over to it."""
    if pool.bodies is None:
        return
    for name, secret in (("s3-access-key", pool.bodies.access_key), ("s3-secret-key", pool.bodies.secret_key)):
        credentials[name] = f"{POOL_FOLDER}/{name}"
        content = f"@secret:{name}@\n"
        files.append(File(path=credentials[name], content=content, mode=0o600, secrets={name: secret}))


def _program_unit(
    kind: str, box: str, unit: str, credentials: Mapping[str, str], bundles: Sequence[Bundle], **values: Any
) -> str:
    """The text of the unit of one of fleetctl's own programs."""
    return fill(
        "systemd",
        f"{kind}.service.j2",
        box=box,
        nats_unit=NATS_UNIT,
        credentials=credentials,
        programs=[folder_of(bundle) for bundle in bundles],
        config=f"{_credentials(unit)}/config",
        stop_limit=POOL_STOP_LIMITS[kind],
        **values,
    )


def _service(
    kind: Any, box: str, unit: str, listens: tuple[str, int], program: str, text: str, files: list[File]
) -> tuple[Service, tuple[File, ...]]:
    made = (File(path=f"{UNIT_FOLDER}/{unit}", content=text), *files)
    service = Service(
        kind=kind,
        box=box,
        unit=unit,
        address=listens[0],
        port=listens[1],
        paths=tuple(file.path for file in made),
        program=program,
    )
    return service, made


def _credentials(unit: str) -> str:
    """The folder in which systemd shows a unit what LoadCredential= hands over."""
    return f"/run/credentials/{unit}"


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
