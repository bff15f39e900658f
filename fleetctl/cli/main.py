"""The ``fleetctl`` command. Commands import what they work with when they run, so that --help is quick."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fleetctl import __version__
from fleetctl.cli import (
    apply,
    batch,
    bench,
    capacity,
    clients,
    compare,
    cutover,
    doctor,
    drain,
    eval,
    exporter,
    guard,
    history,
    images,
    importing,
    init,
    lab,
    link,
    logs,
    lora,
    plan,
    playbook,
    pool,
    profile,
    proxy,
    render,
    restart,
    rollback,
    schema,
    setup,
    status,
    teardown,
    top,
    tune,
    upgrade,
    web,
    weights,
)

NO_READER = 141  # as a shell tells SIGPIPE


def _flow(command: Any) -> None:
    """Let the paragraphs of its help, and of what is below it, take the terminal's lines, not those of the source."""
    if command is None:
        return
    if command.help:
        command.help = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
    for below in getattr(command, "commands", {}).values():
        _flow(below)


class _Root(TyperGroup):
    """Its commands' help flows. It ends as docs/exit-codes.md has it when the reader of a pipe is gone, and at Ctrl-C.

    Click would end with 1.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        _flow(command)
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except typer.BadParameter as error:
            from fleetctl.cli.bad_values import plainly

            plainly(error)
            raise
        except BrokenPipeError:
            # What is still in Python's buffers would fail once more at the very end.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            raise typer.Exit(NO_READER) from None
        except KeyboardInterrupt:
            if "--debug" in sys.argv:
                raise
            from fleetctl.cli.output import fail

            fail("interrupted", None, 130, as_json="--json" in sys.argv)
            raise typer.Exit(130) from None
        return result


app = typer.Typer(
    name="fleetctl",
    cls=_Root,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Move a small fleet of GPU boxes between layouts, and back.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fleetctl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


BEGIN, MOVE, LOOK, MEASURE, BRING, USE = "Begin", "Move the fleet", "Look", "Measure", "Bring to boxes", "Use"
"""Parts of the list of commands."""

app.command("init", rich_help_panel=BEGIN)(init.init)
app.command("setup", rich_help_panel=BEGIN)(setup.setup)
app.command("teardown", rich_help_panel=BEGIN)(teardown.teardown)
app.command("import", rich_help_panel=BEGIN)(importing.import_file)
app.command("schema", rich_help_panel=BEGIN)(schema.schema)
app.command("render", rich_help_panel=BEGIN)(render.render)
app.command("plan", rich_help_panel=MOVE)(plan.plan)
app.command("cutover", rich_help_panel=MOVE)(cutover.cutover)
app.command("rollback", rich_help_panel=MOVE)(rollback.rollback)
app.command("apply", rich_help_panel=MOVE)(apply.apply)
app.command("upgrade", rich_help_panel=MOVE)(upgrade.upgrade)
app.command("restart", rich_help_panel=MOVE)(restart.restart)
app.command("drain", rich_help_panel=MOVE)(drain.drain)
app.command("undrain", rich_help_panel=MOVE)(drain.undrain)
app.command("playbook", rich_help_panel=MOVE)(playbook.playbook)
app.command("status", rich_help_panel=LOOK)(status.status)
app.command("top", rich_help_panel=LOOK)(top.top)
app.command("logs", rich_help_panel=LOOK)(logs.logs)
app.command("history", rich_help_panel=LOOK)(history.history)
app.command("web", rich_help_panel=LOOK)(web.web)
app.command("exporter", rich_help_panel=LOOK)(exporter.exporter)
app.command("clients", rich_help_panel=LOOK)(clients.clients)
app.command("doctor", rich_help_panel=LOOK)(doctor.doctor)
app.command("explain", rich_help_panel=LOOK)(doctor.explain)
app.command("tune", rich_help_panel=MEASURE)(tune.tune)
app.command("compare", rich_help_panel=MEASURE)(compare.compare)
app.add_typer(bench.app, name="bench", rich_help_panel=MEASURE)
app.add_typer(capacity.app, name="capacity", rich_help_panel=MEASURE)
app.add_typer(eval.app, name="eval", rich_help_panel=MEASURE)
app.add_typer(link.app, name="link", rich_help_panel=MEASURE)
app.add_typer(profile.app, name="profile", rich_help_panel=MEASURE)
app.add_typer(batch.app, name="batch", rich_help_panel=USE)
app.add_typer(weights.app, name="weights", rich_help_panel=BRING)
app.add_typer(images.app, name="images", rich_help_panel=BRING)
app.add_typer(lora.app, name="lora", rich_help_panel=BRING)
app.add_typer(guard.app, name="guard", rich_help_panel=BRING)
app.add_typer(proxy.app, name="proxy", rich_help_panel=LOOK)
app.add_typer(pool.app, name="pool", rich_help_panel=LOOK)
app.add_typer(lab.app, name="lab", rich_help_panel=BEGIN)


def _mend_streams() -> None:
    """Output must not fail for a closed stream, nor for a terminal that does not know a character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays open for as long as the process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Entry point: run a command and turn errors into one clear message and a documented exit status."""
    as_json = "--json" in sys.argv
    debug = "--debug" in sys.argv
    from fleetctl.cli.output import fail
    from fleetctl.errors import FleetError, SpecError

    _mend_streams()
    try:
        app()
    except FleetError as error:
        if debug:
            raise
        fail(error.message, error.hint, error.exit_code, as_json=as_json)
        sys.exit(error.exit_code)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.filename is not None:
            fail(f"{error.filename}: {error.strerror}", None, SpecError.exit_code, as_json=as_json)
            sys.exit(SpecError.exit_code)
        hint = "this is a fault of fleetctl; run it again with --debug and report what it shows"
        fail(f"{type(error).__name__}: {error}", hint, 1, as_json=as_json)
        sys.exit(1)
