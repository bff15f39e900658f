"""The ``fleetctl`` command. Commands import what they work with when they run, so that --help is quick."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping
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
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""A command line that cannot be read, whether typer has Click beside it or within."""


def _flow(command: Any) -> None:
    """Let the paragraphs of its help, and of what is below it, take the terminal's lines, not those of the source."""
    if command is None:
        return
    if command.help:
        command.help = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
    for below in getattr(command, "commands", {}).values():
        _flow(below)


def _told_to_scripts(error: Any) -> None:
    """With --json: one event, as of any other error, in place of what people are shown. Raises Exit then."""
    if "--json" in sys.argv:
        from fleetctl.cli.output import fail

        hint = f"`{error.ctx.command_path} --help` says what it takes" if error.ctx else None
        fail(error.format_message(), hint, error.exit_code, as_json=True)
        raise typer.Exit(error.exit_code)


class _Root(TyperGroup):
    """Its commands' help flows. It ends as docs/exit-codes.md has it when the reader of a pipe is gone, and at Ctrl-C.

    Click would end with 1.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        _flow(command)
        return command

    def make_context(self, *args: Any, **more: Any) -> Any:
        try:
            return super().make_context(*args, **more)
        except UsageError as error:
            _told_to_scripts(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except UsageError as error:
            if isinstance(error, typer.BadParameter):
                from fleetctl.cli.bad_values import plainly

                plainly(error)
            _told_to_scripts(error)
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


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fleetctl {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


BEGIN, MOVE, LOOK, MEASURE, BRING, USE = "Begin", "Move the fleet", "Look", "Measure", "Bring to boxes", "Use"
"""Parts of the list of commands."""

COMMANDS: dict[str, tuple[str, Callable[..., Any] | typer.Typer]] = {
    "init": (BEGIN, init.init),
    "setup": (BEGIN, setup.setup),
    "teardown": (BEGIN, teardown.teardown),
    "import": (BEGIN, importing.import_file),
    "schema": (BEGIN, schema.schema),
    "render": (BEGIN, render.render),
    "plan": (MOVE, plan.plan),
    "cutover": (MOVE, cutover.cutover),
    "rollback": (MOVE, rollback.rollback),
    "apply": (MOVE, apply.apply),
    "upgrade": (MOVE, upgrade.upgrade),
    "restart": (MOVE, restart.restart),
    "drain": (MOVE, drain.drain),
    "undrain": (MOVE, drain.undrain),
    "playbook": (MOVE, playbook.playbook),
    "status": (LOOK, status.status),
    "top": (LOOK, top.top),
    "logs": (LOOK, logs.logs),
    "history": (LOOK, history.history),
    "web": (LOOK, web.web),
    "exporter": (LOOK, exporter.exporter),
    "clients": (LOOK, clients.clients),
    "doctor": (LOOK, doctor.doctor),
    "explain": (LOOK, doctor.explain),
    "tune": (MEASURE, tune.tune),
    "compare": (MEASURE, compare.compare),
    "bench": (MEASURE, bench.app),
    "capacity": (MEASURE, capacity.app),
    "eval": (MEASURE, eval.app),
    "link": (MEASURE, link.app),
    "profile": (MEASURE, profile.app),
    "batch": (USE, batch.app),
    "weights": (BRING, weights.app),
    "images": (BRING, images.app),
    "lora": (BRING, lora.app),
    "guard": (BRING, guard.app),
    "proxy": (LOOK, proxy.app),
    "pool": (LOOK, pool.app),
    "lab": (BEGIN, lab.app),
}
"""In the order of the list: the part of the list, and what runs or has commands of its own below it."""


def _made(commands: dict[str, tuple[str, Callable[..., Any] | typer.Typer]]) -> typer.Typer:
    """The program with these commands."""
    made = typer.Typer(
        name="fleetctl",
        cls=_Root,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Move a small fleet of GPU boxes between layouts, and back.",
    )
    made.callback()(_root)
    for name, (part, what) in commands.items():
        if isinstance(what, typer.Typer):
            made.add_typer(what, name=name, rich_help_panel=part)
        else:
            made.command(name, rich_help_panel=part)(what)
    return made


app = _made(COMMANDS)


def needed(words: list[str], environment: Mapping[str, str]) -> typer.Typer:
    """As much of the program as a command line needs: to look at the arguments of all commands takes 0.1 s."""
    if any(name.endswith("_COMPLETE") for name in environment):
        return app
    if not words or words[0] in ("-h", "--help", "--version"):
        return _made({name: (part, _listed(what)) for name, (part, what) in COMMANDS.items()})
    return _made({words[0]: COMMANDS[words[0]]}) if words[0] in COMMANDS else app


def _listed(what: Callable[..., Any] | typer.Typer) -> Callable[..., Any] | typer.Typer:
    """A command as it stands in the list: with its help and without its arguments."""

    def command() -> None: ...

    if not isinstance(what, typer.Typer):
        command.__doc__ = what.__doc__
        return command
    callback = what.registered_callback
    command.__doc__ = callback.callback.__doc__ if callback and callback.callback else None
    listed = typer.Typer(help=what.info.help)
    listed.callback()(command)
    return listed


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
        needed(sys.argv[1:], os.environ)()
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
