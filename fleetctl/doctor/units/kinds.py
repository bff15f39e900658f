"""What family *units* looks for."""

from __future__ import annotations

from fleetctl.doctor.finding import Kind, Severity

_APPLY = "`fleetctl apply` brings the boxes to what the layout says"
_SYSTEMD = "systemd.unit(5), systemd.service(5), systemctl(1)"

SEVERAL_AT_BOOT = Kind(
    "U01",
    Severity.ERROR,
    "Units that exclude each other start at boot",
    "units of ours on one box that are all enabled although they `Conflicts=` with each other",
    "Which of them is up after a reboot is chance: each start stops the other, and for a while two can run together.",
    "disable those that are not of the live layout: `systemctl disable UNIT`, which --fix does",
    f"reports of three conflicting units that were all enabled; {_SYSTEMD}",
)
OTHER_AT_BOOT = Kind(
    "U02",
    Severity.WARNING,
    "An engine of another layout starts at boot",
    "units of ours that are enabled although the live layout has no such unit on the box",
    "After a reboot the box runs an engine that the proxy sends nothing to and that takes memory.",
    "`systemctl disable UNIT`, which --fix does",
    _SYSTEMD,
)
NOT_AT_BOOT = Kind(
    "U03",
    Severity.WARNING,
    "A unit of the layout does not start at boot",
    "units that the live layout needs on a box and that are not enabled",
    "The box serves now, and no longer after its next reboot or loss of power.",
    "`systemctl enable UNIT`, which --fix does",
    _SYSTEMD,
)
NOT_RUNNING = Kind(
    "U04",
    Severity.ERROR,
    "A unit of the layout does not run as it should",
    "engines, proxy, floating address and guard of the live layout whose unit is down, missing, or runs another build",
    "The layout counts on it: with a copy less the others take all requests, and a split or the proxy serves nothing.",
    _APPLY,
    _SYSTEMD,
)
OTHER_RUNS = Kind(
    "U05",
    Severity.WARNING,
    "A unit of another layout runs",
    "units of ours that are up although the live layout has no such unit on the box",
    "It takes memory and perhaps the port that the live layout was given.",
    _APPLY,
    _SYSTEMD,
)
SUPERSEDED_BACK = Kind(
    "U06",
    Severity.ERROR,
    "A unit that fleetctl replaced is back",
    "units under superseded: in fleet.yaml that run or are enabled again",
    "Our units `Conflicts=` with it: its next start stops the engine that serves, and after a reboot it may win.",
    "`systemctl disable --now UNIT`, which --fix does, and find out who enabled it",
    "a cutover in which the old watchdog would have stopped the new copy",
)
FOREIGN = Kind(
    "U07",
    Severity.WARNING,
    "A unit of somebody else acts on ours",
    "units, timers, path units and sockets that are enabled or run and that start, stop, restart or conflict with "
    "units of fleetctl or those that it replaced: by Conflicts=, Requires=, BindsTo=, Wants=, Upholds=, OnFailure=, "
    "Unit= or PropagatesStopTo=, or by a command (also in a script) of systemctl, docker, podman, pkill or fuser",
    "It restarts engines behind fleetctl's back; after a move it starts the old engine, which stops the new one.",
    "`systemctl disable --now UNIT`, which --fix does for units that no package brought; or list it under superseded: "
    "in fleet.yaml, then every move keeps it away and a rollback gives it back",
    "a cutover in which the old watchdog would have stopped the new copy; systemd.unit(5)",
)
CRON = Kind(
    "U08",
    Severity.WARNING,
    "A cron entry acts on our units",
    "lines in /etc/crontab, /etc/cron.d, /etc/anacrontab, users' crontabs and /etc/rc.local, and scripts in "
    "/etc/cron.{hourly,daily,weekly,monthly}, that start, stop or restart units, containers or engines",
    "It acts at a time of its own, in the middle of a move too, and nothing shows that it did.",
    "take the line out: the finding has the command",
    "crontab(5)",
)
CONTAINER = Kind(
    "U09",
    Severity.WARNING,
    "A container comes back by itself",
    "containers of Docker or Podman with a restart policy that are engines, use a port of ours or have the name of one "
    "of our containers",
    "After a reboot, or a restart of Docker, it is there again beside our engine and takes its memory or port.",
    "`docker update --restart=no NAME` (Podman 5.1 and later: `podman update --restart=no NAME`), which --fix does",
    "an old engine with `restart: unless-stopped` that came back after a reboot; docs.docker.com, podman-update(1)",
)
USER_UNIT = Kind(
    "U10",
    Severity.WARNING,
    "A service of a user acts on our units",
    "enabled user units (~/.config/systemd/user, /etc/systemd/user) that start an engine or act on our units",
    "It starts at the login of that user, or at boot where the user lingers, and no list of system units shows it.",
    "`systemctl --user --machine=USER@ disable --now UNIT`",
    "systemd.unit(5), loginctl(1)",
)
DROP_IN = Kind(
    "U11",
    Severity.WARNING,
    "A drop-in changes a unit of ours",
    "files that override settings of our units, and which settings; values that may be secret are not shown",
    "The unit does not do what the plan says, and no move or rollback changes that.",
    "put the setting into fleet.yaml, remove the drop-in, `systemctl daemon-reload`, `fleetctl apply`",
    _SYSTEMD,
)
STORM = Kind(
    "U12",
    Severity.ERROR,
    "An engine restarts again and again",
    "three or more automatic restarts within an hour since the unit was last started, how often, and whether its start "
    "limit ever ends that",
    "Each start loads for minutes and reads the weights; where memory is short it can keep sshd from answering.",
    "read why it ends (`journalctl -u UNIT`), mend that, then `fleetctl apply`",
    "an engine that was restarted about 35 times until its box did not answer; systemd's StartLimitIntervalSec=",
)
REFUSED = Kind(
    "U13",
    Severity.ERROR,
    "systemd has given up on a unit",
    "our units in state failed whose last word is `Start request repeated too quickly.` or start-limit-hit",
    "It stays down until somebody starts it.",
    "read why it ended (`journalctl -u UNIT`), mend that, then `fleetctl apply`",
    "systemd.unit(5), StartLimitBurst=",
)
NOTIFY = Kind(
    "U14",
    Severity.ERROR,
    "Type=notify on an engine that never notifies",
    "units of an engine on one box whose Type= was made notify",
    "vLLM sends no READY=1: the unit never becomes active, and systemd kills the engine when its start limit is over.",
    "take Type= out of the drop-in or the file, `systemctl daemon-reload`, `fleetctl apply`",
    "reports of units that never became active; systemd.service(5), Type=",
)
COLLISION = Kind(
    "U15",
    Severity.ERROR,
    "The name of a container is still taken",
    "engines that do not run and whose log says `Conflict. The container name … is already in use` or that the process "
    "of a container cannot be killed",
    "A container that is still being removed, or whose process the driver holds, keeps every new one from starting.",
    "remove the old one by force, then `fleetctl apply`",
    "reports of `--rm` containers that were still being stopped; docker-run(1), podman-rm(1)",
)
DRIFT = Kind(
    "U16",
    Severity.WARNING,
    "A file of ours was edited or is missing",
    "files of the live generation that are not as it has them, with a short diff where the file has no secrets",
    "What runs after the next start or reload is not what was planned, and the next move takes the change away.",
    "`fleetctl apply` puts the file back; what shall stay goes into fleet.yaml first",
    "the files of the generation that the box keeps",
)
NOT_READ = Kind(
    "U17",
    Severity.NOTE,
    "systemd has not read a unit file again",
    "our units whose file on the disk is newer than what systemd has loaded",
    "The next start still uses the old text.",
    "`systemctl daemon-reload`",
    "systemctl(1), NeedDaemonReload",
)
FOREIGN_ENGINE = Kind(
    "U18",
    Severity.WARNING,
    "An engine of somebody else starts at boot",
    "units that start vLLM, SGLang or llama.cpp, run or are enabled, and are not under superseded: in fleet.yaml",
    "It takes memory that the layout was given, and where it has the same port, one of the two cannot start.",
    "list it under superseded: in fleet.yaml if it shall go; raise reserve: by what it takes if it shall stay",
    _SYSTEMD,
)
OTHER_GENERATION = Kind(
    "U19",
    Severity.WARNING,
    "A box is in another generation than the fleet",
    "boxes of the live layout whose current generation is not that of the box that keeps the journal",
    "Its units and files are those of another time; a rollback from there leads somewhere else.",
    _APPLY,
    "/etc/fleetctl/current on each box",
)
CUT_OFF = Kind(
    "U20",
    Severity.ERROR,
    "A move was cut off",
    "a move that has no end and that nobody carries on. What it left half done is not told one by one",
    "The fleet is between two states: guards stand back, and no other change can begin.",
    "finish it or undo it with the command that is named; docs/recovery.md",
    "the journal of the move, under /var/lib/fleetctl/moves",
)

KINDS = (
    SEVERAL_AT_BOOT,
    OTHER_AT_BOOT,
    NOT_AT_BOOT,
    NOT_RUNNING,
    OTHER_RUNS,
    SUPERSEDED_BACK,
    FOREIGN,
    CRON,
    CONTAINER,
    USER_UNIT,
    DROP_IN,
    STORM,
    REFUSED,
    NOTIFY,
    COLLISION,
    DRIFT,
    NOT_READ,
    FOREIGN_ENGINE,
    OTHER_GENERATION,
    CUT_OFF,
)
