"""The bridge of the proxy: where requests go while no engine is up, as a value and as its root-only file."""

from __future__ import annotations

from fleetctl.errors import SpecError
from fleetctl.render.backends import backend_of
from fleetctl.render.names import PROXY_FOLDER
from fleetctl.render.release import Bridge, File
from fleetctl.spec.endpoint import parse_endpoint
from fleetctl.spec.fleet import Fleet

KEY = f"{PROXY_FOLDER}/bridge-key"


def bridge(fleet: Fleet) -> Bridge | None:
    """The bridge of a fleet, None where it has none. Raises SpecError for a URL or names that cannot be used."""
    spec = fleet.proxy.bridge
    if spec is None:
        return None
    try:
        endpoint = parse_endpoint(spec.url)
    except ValueError as error:
        raise SpecError(f"proxy.bridge.url is not right: {error}") from None
    return Bridge(
        tls=endpoint.tls,
        host=endpoint.host,
        port=endpoint.port,
        path=endpoint.path,
        name=endpoint.authority,
        models=_models(fleet, spec.model),
        after=spec.after,
        concurrency=spec.concurrency,
        ca=spec.ca,
        api_key=spec.api_key,
    )


def _models(fleet: Fleet, given: str | dict[str, str]) -> dict[str, str]:
    """Backend → name of the model at the bridge."""
    found: dict[str, str] = {}
    placed = [model for model in fleet.models if any(model in models for models in fleet.layouts.values())]
    for model in placed:
        name = given if isinstance(given, str) else given.get(model)
        backend = backend_of(fleet, model)
        if name is not None and found.setdefault(backend, name) != name:
            raise SpecError(
                f"proxy.bridge.model: {model} shares names with {backend}, and clients cannot tell them apart",
                hint="give both the same model at the bridge",
            )
    return found


def key_file(config: Bridge) -> File | None:
    """The file that HAProxy reads the key from as it starts, as root; None for an endpoint without keys."""
    if config.api_key is None:
        return None
    secrets = {"bridge": config.api_key}
    return File(path=KEY, content="key @secret:bridge@\n", mode=0o600, quoting="word", secrets=secrets)
