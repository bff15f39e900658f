"""What would put a box to sleep or restart what runs there, and what would be lost at a reboot."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.doctor.box.told import BoxTold, properties
from fleetctl.doctor.finding import Finding, Kind, Remedy, Severity
from fleetctl.doctor.scene import Scene

SLEEP = Kind(
    "B12",
    Severity.WARNING,
    "the box may go to sleep",
    "sleep targets of systemd that are not masked, where a setting of logind, a lid or a desktop would use them; a "
    "note where nothing seen would",
    "A box that sleeps takes its engines out of the network, and memory of the GPU may not survive it.",
    "systemctl mask sleep.target suspend.target hibernate.target hybrid-sleep.target",
    "systemd-sleep(8), logind.conf(5); GNOME suspends after 15 to 20 minutes at its login screen",
)
UPGRADES = Kind(
    "B13",
    Severity.NOTE,
    "upgrades may restart engines or replace the driver",
    "unattended-upgrades that may take the NVIDIA driver or the container engine, or reboot the box (a warning); "
    "needrestart that restarts services by itself after an upgrade of a library (a warning when it is told to)",
    "After an upgrade of the driver no engine starts until the box is booted again; an upgrade of the container engine "
    "restarts it, and with it every container. Nobody is asked, and no copy leaves the proxy before.",
    "name them in Unattended-Upgrade::Package-Blacklist, and engines in needrestart's override_rc",
    "unattended-upgrades; needrestart in Ubuntu 24.04",
)
JOURNAL = Kind(
    "B14",
    Severity.WARNING,
    "the journal is lost at a reboot",
    "a journal that is kept in memory only",
    "After a box has frozen and was unplugged nobody can say why.",
    "mkdir -p /var/log/journal, and no Storage=volatile",
    "journald.conf(5)",
)
REBOOT = Kind(
    "B15",
    Severity.NOTE,
    "the distribution wants a reboot",
    "/run/reboot-required",
    "What was upgraded is not what runs: it is then that drivers do not fit, in a reboot that nobody has planned.",
    "drain the box and boot it again in a quiet hour",
    "unattended-upgrades, update-notifier",
)
KINDS = (SLEEP, UPGRADES, JOURNAL, REBOOT)

_ASLEEP = ("suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate", "sleep")
_OFF = ("poweroff", "halt", "reboot", "kexec")
_BLACKLIST = "/etc/apt/apt.conf.d/90fleetctl"
_OVERRIDE = "/etc/needrestart/conf.d/fleetctl.conf"


def find(scene: Scene, box: str, told: BoxTold) -> Iterator[Finding]:
    """Findings of one box."""
    yield from _sleep(box, told)
    yield from _upgrades(scene, box, told)
    yield from _journal(box, told)
    if told.reboot is not None:
        yield REBOOT.found(
            box,
            "/run/reboot-required",
            f"{box} wants to be booted again" + (f", for {', '.join(told.reboot[:4])}" if told.reboot else ""),
            f"/run/reboot-required.pkgs: {' '.join(told.reboot) or 'nothing'}",
            fix=f"in a quiet hour: `fleetctl drain {box}`; systemctl reboot on {box}; `fleetctl undrain {box}`",
        )


def _sleep(box: str, told: BoxTold) -> Iterator[Finding]:
    targets = properties(told.sleep.targets)
    awake = [name for name, rows in targets.items() if rows.get("LoadState") == "loaded"]
    set_to = {key: (path, value.lower()) for path, key, value in told.sleep.settings}
    reasons, evidence = [], []
    off = set_to.get("IdleAction", ("", ""))
    if off[1] in _OFF:
        yield SLEEP.found(
            box,
            off[0],
            f"logind turns {box} off when nobody is at it: IdleAction={off[1]}",
            f"{off[0]}: IdleAction={off[1]}",
            fix=f"on {box}: write IdleAction=ignore in {off[0]}; systemctl kill -s HUP systemd-logind",
        )
    # Masking one is enough for systemctl suspend to fail; sleep.target is what each of the others needs.
    if "sleep.target" not in awake or awake == ["sleep.target"]:
        return
    if off[1] in _ASLEEP:
        reasons.append(f"logind does so when nobody is at it (IdleAction={off[1]})")
        evidence.append(f"{off[0]}: IdleAction={off[1]}")
    lid = set_to.get("HandleLidSwitch", ("its default", "suspend"))
    if told.sleep.lid and lid[1] in _ASLEEP:
        reasons.append("it has a lid that can be shut")
        evidence.append(f"{lid[0]}: HandleLidSwitch={lid[1]}")
    desktop = properties(told.sleep.desktop).get("display-manager.service", {})
    greeter = {key: value.strip("'\"") for _, key, value in told.sleep.greeter}
    calm = greeter.get("sleep-inactive-ac-type") == "nothing" or greeter.get("sleep-inactive-ac-timeout") == "0"
    if desktop.get("ActiveState") == "active" and not calm:
        reasons.append("a desktop runs there, whose login screen does so when nobody is at it")
        evidence.append("display-manager.service: ActiveState=active")
    if not reasons and (told.container or not told.sleep.states):
        return  # it cannot
    why = f": {' and '.join(reasons)}" if reasons else ", though nothing was seen that would send it there"
    yield SLEEP.found(
        box,
        "sleep.target",
        f"{box} may go to sleep{why}",
        *evidence,
        f"not masked: {', '.join(awake)}",
        fix=f"on {box}: systemctl mask {' '.join(awake)}"
        + (f"; write IdleAction=ignore in {off[0]} too, or logind tries again and again" if off[1] in _ASLEEP else ""),
        remedy=Remedy((("systemctl", "mask", *awake),), (("systemctl", "unmask", *awake),)),
        severity=None if reasons else Severity.NOTE,
    )


def apt_values(text: str) -> dict[str, list[str]]:
    """Option → values, from the lines that ``apt-config dump`` prints: ``NAME "VALUE";``, lists end with ``::``."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'^(\S+) "(.*)";$', text, re.MULTILINE):
        found.setdefault(name.removesuffix("::"), []).append(value)
    return found


def _blocked(package: str, patterns: list[str]) -> bool:
    """unattended-upgrades matches its expressions at the beginning of a name."""
    for pattern in patterns:
        # An expression with repeats inside repeats can take for ever: it is not tried.
        if len(pattern) > 100 or re.search(r"[+*}]\)[+*{]", pattern):
            continue
        try:
            if re.match(pattern, package):
                return True
        except re.error:
            continue
    return False


def _upgrades(scene: Scene, box: str, told: BoxTold) -> Iterator[Finding]:
    values, timer = apt_values(told.upgrades.apt), properties(told.upgrades.timer).get("apt-daily-upgrade.timer", {})
    wanted = values.get("APT::Periodic::Unattended-Upgrade", ["0"])[-1]
    goes = told.upgrades.unattended and wanted not in ("0", "") and timer.get("ActiveState", "active") == "active"
    if goes:
        yield from _unattended(scene, box, told, values)
    yield from _needrestart(box, told, goes=goes)


def _unattended(scene: Scene, box: str, told: BoxTold, values: dict[str, list[str]]) -> Iterator[Finding]:
    reboot = values.get("Unattended-Upgrade::Automatic-Reboot", ["false"])[-1]
    if reboot.lower() in ("true", "1", "yes", "on"):
        at = values.get("Unattended-Upgrade::Automatic-Reboot-Time", ["now"])[-1]
        yield UPGRADES.found(
            box,
            "Unattended-Upgrade::Automatic-Reboot",
            f"{box} boots itself after an upgrade that wants it (at {at})",
            f'Unattended-Upgrade::Automatic-Reboot "{reboot}";',
            fix=f"on {box}: echo 'Unattended-Upgrade::Automatic-Reboot \"false\";' >> {_BLACKLIST}",
            severity=Severity.WARNING,
        )
    docker = any(engine.image is not None for engine, _ in scene.live.ranks_on(box))
    rows = [line.split("|") for line in told.upgrades.packages]
    installed = [(row[0], row[1]) for row in rows if len(row) == 3]
    blocked = [pattern for pattern in values.get("Unattended-Upgrade::Package-Blacklist", []) if pattern]
    open_to = sorted(
        name
        for state, name in installed
        if not state.startswith("h")
        and not _blocked(name, blocked)
        and (docker or "nvidia" in name)
        and name != "nvidia-container-toolkit"
    )
    if open_to:
        more = f" and {len(open_to) - 3} more" if len(open_to) > 3 else ""
        words = " ".join(
            f'"{word}";'
            for word in (
                "nvidia-",
                "libnvidia-",
                "linux-modules-nvidia-",
                *(("docker", "containerd") if docker else ()),
            )
        )
        yield UPGRADES.found(
            box,
            "unattended-upgrades",
            f"unattended-upgrades may replace {', '.join(open_to[:3])}{more} on {box}",
            'APT::Periodic::Unattended-Upgrade "1";',
            f"Unattended-Upgrade::Package-Blacklist: {', '.join(blocked) or 'empty'}",
            fix=f"on {box}: echo 'Unattended-Upgrade::Package-Blacklist {{ {words} }};' > {_BLACKLIST}, or apt-mark "
            f"hold {' '.join(open_to[:3])}",
        )


def _needrestart(box: str, told: BoxTold, *, goes: bool) -> Iterator[Finding]:
    if not told.upgrades.needrestart:
        return
    lines = told.upgrades.nrconf
    if any("override_rc" in line and "fleetctl" in line for _, line in lines):
        return
    modes = [(path, found[1]) for path, line in lines if (found := re.match(r"\$nrconf\{restart\}\s*=\s*'(\w)'", line))]
    path, mode = modes[-1] if modes else ("", "")
    release = dict(line.split("=", 1) for line in (told.os_release or "").splitlines() if "=" in line)
    number = re.match(r'"?(\d{1,3})\.', release.get("VERSION_ID", ""))
    # Since 24.04 Ubuntu's own hook restarts services whatever the mode, unless it is to list them only.
    by_itself = release.get("ID") == "ubuntu" and number is not None and int(number[1]) >= 24 and mode in ("", "i")
    if mode != "a" and not (by_itself and goes):
        return
    fix = f"on {box}: echo '$nrconf{{override_rc}}{{qr(^fleetctl-)}} = 0;' > {_OVERRIDE}"
    yield UPGRADES.found(
        box,
        path or "needrestart",
        f"needrestart restarts services of {box} after an upgrade of a library, engines too",
        f"{path}: $nrconf{{restart}} = '{mode}'"
        if mode
        else f"needrestart of {release.get('PRETTY_NAME', 'Ubuntu').strip(chr(34))}",
        fix=fix,
        severity=Severity.WARNING if mode == "a" else None,
    )


def _journal(box: str, told: BoxTold) -> Iterator[Finding]:
    if told.journal.kept:
        return
    path, storage = told.journal.storage[-1] if told.journal.storage else ("", "")
    volatile = storage.lower() in ("volatile", "none")
    made = "mkdir -p /var/log/journal; systemd-tmpfiles --create --prefix /var/log/journal; journalctl --flush"
    yield JOURNAL.found(
        box,
        path or "/var/log/journal",
        f"the journal of {box} is kept in memory and lost at a reboot" + (f": Storage={storage}" if volatile else ""),
        f"{path}: Storage={storage}" if storage else "nothing in /var/log/journal",
        fix=f"on {box}: "
        + (f"write Storage=persistent in {path}; systemctl restart systemd-journald; {made}" if volatile else made),
    )
