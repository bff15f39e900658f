"""``fleetctl proxy``: what a proxy's settings do in an outage, and what those of the fleet's own should be."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.options import Debug, Json
from fleetctl.cli.proxy_tune import tune

if TYPE_CHECKING:
    from fleetctl.proxy.lint.findings import Finding, Place

app = typer.Typer(no_args_is_help=True, help="Look at a proxy's configuration, or tune that of the fleet.")

_COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


class _Kind(StrEnum):
    HAPROXY = "haproxy"
    NGINX = "nginx"


@app.command()
def lint(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="haproxy.cfg or nginx.conf; - for standard input.")],
    kind: Annotated[_Kind | None, typer.Option("--kind", help="Whose configuration it is; default: seen.")] = None,
    first_token: Annotated[
        float, typer.Option("--first-token", min=0.001, max=1e6, help="Longest wait for a first token, in seconds.")
    ] = 256.0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what each setting would do in an outage or to a long stream, and what to write instead."""
    from fleetctl.cli.output import emit
    from fleetctl.errors import UnhealthyError
    from fleetctl.proxy.lint.findings import Assumed, Severity
    from fleetctl.proxy.lint.kinds import Kind, load
    from fleetctl.proxy.lint.kinds import lint as lint_text

    name, text, folder = load(file)
    forced = Kind(kind.value) if kind else None
    seen, findings = lint_text(name, text, kind=forced, folder=folder, assumed=Assumed(first_token_s=first_token))
    counts = {severity.value: sum(f.severity is severity for f in findings) for severity in Severity}
    if json:
        for finding in findings:
            emit("finding", **_event(finding))
        emit("summary", file=name, program=seen.value, **counts)
    else:
        _show(name, seen.value, findings, counts)
    if counts["error"] or counts["warning"]:
        raise typer.Exit(UnhealthyError.exit_code)


def _event(finding: Finding) -> dict[str, object]:
    def plain(place: Place) -> dict[str, object]:
        return {"file": place.file, "line": place.line}

    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "title": finding.title,
        **plain(finding.place),
        "also": [plain(place) for place in finding.also],
        "where": finding.where,
        "setting": finding.setting,
        "outage": finding.outage,
        "write": finding.write,
        "why": finding.why,
        "source": finding.source,
    }


def _show(name: str, kind: str, findings: list[Finding], counts: dict[str, int]) -> None:
    from rich.text import Text

    from fleetctl.cli.output import console

    out = console()
    for finding in findings:
        severity = finding.severity.value
        line = Text(f"{finding.place}: ").append(f"{severity} {finding.code}", style=_COLOURS[severity])
        out.print(line.append(f" {finding.title} ({finding.where})"))
        also = ", ".join(str(place.line if place.file == finding.place.file else place) for place in finding.also)
        out.print(Text(f"    now:    {finding.setting}" + (f"  (also line {also})" if also else "")))
        out.print(Text(f"    does:   {finding.outage}"))
        out.print(Text(f"    write:  {finding.write}", style="bold"))
        out.print(Text(f"    why:    {finding.why}"))
    told = ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for word, number in counts.items())
    out.print(Text(f"{name} ({kind}): {told}"))


app.command()(tune)
