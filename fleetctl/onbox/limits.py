"""What the installed program does for an account with limited sudo: what moves take, in fleetctl's own places.

Those who use it decide what the engines run, and engines run as root: this keeps an account from running and reading
what it likes, it does not keep it from becoming root by way of an engine. docs/security.md says so too.
"""

import os
import re
import syslog
from typing import Any, Callable, Dict, List

PLACES = ("/etc/fleetctl/", "/var/lib/fleetctl/")
UNITS = re.compile(r"/etc/systemd/system/(fleetctl-[^/]+|[^/]+\.d/fleetctl[^/]*\.conf)$")
CHECKS = (
    ("systemd-analyze", "verify", "--man=no"),
    ("haproxy", "-c", "-f"),
    ("python3", "-I"),
)  # each followed by paths in fleetctl's places, and the last by the word "check" between two of them
SYSTEMS = re.compile(r"/(bin|boot|dev|etc|lib[^/]*|proc|root/\.(?!cache/)[^/]*|run|sbin|sys|usr|var/(lib|spool))(/|$)")
ON_UNITS = (("systemctl", "reload"), ("systemctl", "reset-failed"))  # of fleetctl's units
RDMA = re.compile(r"ib_(write|read|send)_(bw|lat)$")  # of perftest, for `fleetctl link test`
MOVE = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]*$")
QUIET = ("ping", "facts", "watch", "clock", "lock_beat", "unit_states")  # asked all the time; they change nothing

_READ = """
adapter_read adapters_index adapters_look addresses benches box_kind builds checkpoint_files clock connects
drained_read engine_processes examine_box examine_clients examine_engines examine_link examine_memory
examine_processes examine_proxy examine_units facts firewall_before firewall_look fleet_text gate_failures
generation_read guard_status history image_prove images_look installed journal_lines journal_read
journal_taken link_interfaces logs memory_left memory_lines model_checksums model_kind ping proxy_figures
proxy_look proxy_requests start_lines superseded_read superseded_states survey tunings unit_states watch
weights_kept weights_look
"""
_DONE = """
adapter_put adapter_seal adapter_sent adapters_drop adapters_load adapters_note adapters_restore
adapters_unload await_free await_ready bandwidth_drive bandwidth_serve bench_note claim claim_release
daemon_reload drained_write end_process fetch_weights firewall_keep firewall_take_back gate_keep
generation_current generation_remove generations_prune hub_library image_pull image_receive image_send image_tag
journal_append journal_open lock_beat lock_release lock_take move_begin move_close move_end moves_prune
proxy_await proxy_idle proxy_open proxy_point proxy_set read_ahead score_note supersede superseded_forget
superseded_record trial_end trial_run tuning_note unit_enable unit_start unit_stop write_meta
"""
ALLOWED = frozenset(_READ.split()) | frozenset(_DONE.split())
REFUSED = frozenset(("digest", "read", "remedy", "remove", "search_addresses"))
"""Beyond what a move takes; and all whose name begins with ``setup_``."""


class NotAllowedError(Exception):
    """The account may not have this done."""


def within(name: str, args: Dict[str, Any]) -> None:
    """Return if the op may be run with these arguments, after a line in the system's log. Raises NotAllowedError."""
    who = os.environ.get("SUDO_USER") or str(os.getuid())
    allowed = is_allowed(name, args)
    if name not in QUIET or not allowed:
        syslog.openlog("fleetctl", 0, syslog.LOG_AUTHPRIV)
        word = "" if allowed else ": refused"
        syslog.syslog(syslog.LOG_INFO if allowed else syslog.LOG_WARNING, "%s: %s%s" % (who, name, word))
    if not allowed:
        raise NotAllowedError("the sudo of %s is limited here, and %s is beyond that" % (who, name))


def is_allowed(name: str, args: Dict[str, Any]) -> bool:
    """Whether an op that is asked for so is part of a move."""
    move = args.get("move")
    if move is not None and (not isinstance(move, str) or MOVE.match(move) is None):
        return False
    return name in ALLOWED or (name in RULES and RULES[name](args))


def _ours(path: str) -> bool:
    """In a place of fleetctl; a path that leaves it again is not."""
    return os.path.normpath(path) == path and path.startswith(PLACES)


def _runs(args: Dict[str, Any]) -> bool:
    argv: List[str] = args.get("argv", [])
    if not argv or args.get("env"):
        return False
    for check in CHECKS:
        if tuple(argv[: len(check)]) == check:
            rest = argv[len(check) :]
            return bool(rest) and _ours(rest[0]) and all(_ours(word) or word == "check" for word in rest)
    if tuple(argv[:2]) in ON_UNITS:
        return bool(argv[2:]) and all(word.startswith("fleetctl-") for word in argv[2:])
    return RDMA.match(argv[0]) is not None


def _installs(args: Dict[str, Any]) -> bool:
    """Files come from fleetctl's places and go to them, and to unit files with its name."""
    paths = list(args.get("paths", [])) + list(args.get("remove", []))
    folder = args.get("folder", "")
    source = not folder or _ours(folder)
    return source and all(_ours(path) or UNITS.match(path) is not None for path in paths)


def _links(prior: Dict[str, Dict[str, Any]]) -> List[str]:
    """Links that would be made to give units back."""
    return [path for state in prior.values() for path in state.get("links", {})]


def _is_link_of_unit(path: str) -> bool:
    return os.path.normpath(path) == path and path.startswith(("/etc/systemd/system/", "/run/systemd/system/"))


def _weights(args: Dict[str, Any]) -> bool:
    """Weights lie in folders of their own: not where the system, or a user's own settings, are."""
    return all(os.path.normpath(path) == path and SYSTEMS.match(path) is None for path in _paths(args))


def _paths(value: Any) -> List[str]:
    """All absolute paths in the arguments of an op."""
    if isinstance(value, dict):
        return [path for one in value.values() for path in _paths(one)]
    if isinstance(value, list):
        return [path for one in value for path in _paths(one)]
    return [value] if isinstance(value, str) and value.startswith("/") else []


def _asks_for_help(args: Dict[str, Any]) -> bool:
    """A program's own words on its flags; which program that is, is the matter of who deploys engines."""
    argv = args.get("argv", [])
    loads = [name for name in args.get("env", {}) if name.startswith("LD_")]
    return bool(argv) and argv[-1].startswith("--help") and not loads


WEIGHTS = "arrive aside back begin delete goal prove receive room serve verify"
RULES: Dict[str, Callable[[Dict[str, Any]], bool]] = {
    **dict.fromkeys(("weights_" + name for name in WEIGHTS.split()), _weights),
    "run": _runs,
    "write": lambda args: all(_ours(file.get("path", "")) for file in args.get("files", [])),
    "install": _installs,
    "uninstall": _installs,
    "firewall_try": lambda args: _ours(args.get("path", "")),
    "unsupersede": lambda args: all(_is_link_of_unit(path) for path in _links(args.get("prior", {}))),
    "firewall_restore": lambda args: "include" not in args.get("script", ""),
    "program_help": _asks_for_help,
    "container_try": lambda args: os.path.basename((args.get("words") or [""])[0]) in ("docker", "podman"),
    "adapters_tell": lambda args: args.get("path", "").startswith("/run/fleetctl-proxy/"),
    "drop_page_cache": lambda args: "drop" not in args,
}
