"""The command line: ``appliance``.

Expected failures end with one line on stderr and exit code 1, never with a traceback.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance import __version__
from appliance.cli.audit import audit
from appliance.cli.backup import backup
from appliance.cli.jobs import jobs
from appliance.cli.models import models
from appliance.cli.options import DEFAULT_CONFIG, config_option, examples, json_option, print_json
from appliance.cli.sources import sources
from appliance.cli.stores import stores
from appliance.config import load
from appliance.errors import ApplianceError, BadRequest
from appliance.masking import masked

if TYPE_CHECKING:
    from appliance.runtime import Runtime


class Cli(click.Group):
    """The command group, which the commands of listed plugins join.

    Where there is no configuration those of every installed plugin do: somebody signs in to an appliance elsewhere.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Our commands and the plugins'."""
        self._add_plugin_commands()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One command; a plugin's is looked for only when we have none of that name.

        Raises click's UsageError for one of a plugin that the configuration does not list.
        """
        if found := super().get_command(ctx, cmd_name):
            return found
        self._add_plugin_commands()
        if found := super().get_command(ctx, cmd_name):
            return found
        _refuse_unlisted(cmd_name)
        return None

    def _add_plugin_commands(self) -> None:
        from appliance.plugins import Plugins, add_installed_commands

        path = _config_path()
        if not path.exists():
            add_installed_commands(self)
            return
        try:
            Plugins(load(path)).commands(self)
        except ApplianceError as error:
            # Help and our own commands must work also beside a broken configuration.
            click.echo(f"warning: commands of plugins are missing: {error}", err=True)


def _refuse_unlisted(command: str) -> None:
    from appliance.plugins import plugin_with_command

    if plugin := plugin_with_command(command):
        # Commands that need no configuration, as login, run where there is none.
        elsewhere = "" if _option(sys.argv, "--config") else f", or run it in a folder without {DEFAULT_CONFIG}"
        raise click.UsageError(
            f"{command} is a command of the plugin {plugin}; list that under plugins in {_config_path()}{elsewhere}"
        )


def _config_path() -> Path:
    return Path(_option(sys.argv, "--config") or DEFAULT_CONFIG)


def _option(arguments: list[str], name: str) -> str | None:
    for argument, following in zip(arguments, [*arguments[1:], None], strict=True):
        if argument == name:
            return following
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return None


class Port(click.IntRange):
    """Named in help and errors."""

    name = "port number"


@click.group(cls=Cli, epilog=examples("appliance serve", "appliance check --config appliance.yaml"))
@click.version_option(__version__, prog_name="appliance")
def cli() -> None:
    """A RAG-ready inference appliance: OpenAI-compatible chat over your own models and documents."""


cli.add_command(audit)
cli.add_command(backup)
cli.add_command(jobs)
cli.add_command(models)
cli.add_command(sources)
cli.add_command(stores)


@cli.command(
    epilog=examples(
        "appliance serve",
        "appliance serve --config prod.yaml --port 9000",
        "appliance serve --port 9001 --replica one",
    )
)
@config_option
@click.option("--host", help="Address to listen on, in place of server.host.")
@click.option("--port", type=Port(0, 65535), help="Port to listen on, in place of server.port; 0 takes a free one.")
@click.option("--replica", metavar="NAME", help="Name of this server, where several serve one data_dir.")
def serve(config_path: Path, host: str | None, port: int | None, replica: str | None) -> None:
    """Start the models, then serve the API until Ctrl-C or SIGTERM."""
    from appliance.serve import run

    run(config_path, host=host, port=port, replica=replica)


@cli.command(
    epilog=examples(
        "appliance check",
        "appliance check --config prod.yaml --json",
        "appliance check --explain role:user,scope:files stores.write handbook",
        "appliance check --explain key:3f9k2m8x0abc models.use smollm2 --json",
        "appliance check --explain role:auditor audit.read -",
    )
)
@click.option(
    "--explain",
    "question",
    nargs=3,
    metavar="SUBJECT ACTION OBJECT",
    help="Say whether somebody may do something, and why. SUBJECT is key:ID, or role:, scope:, group:, tenant:, user:, "
    "model: and store: joined by commas; ACTION a permission; OBJECT a model, vector store or file, or - for none.",
)
@config_option
@json_option
def check(question: tuple[str, str, str] | None, config_path: Path, as_json: bool) -> None:
    """Check the configuration and its plugins; start nothing.

    Ends with exit code 1 and one line that says what to mend. With --explain 0 is yes, 1 no, and 2 a question that
    cannot be understood.
    """
    from appliance.app import create_app
    from appliance.knowledge.confinement import lacking
    from appliance.runtime import build

    config = load(config_path)
    runtime = build(config, config_path=config_path)
    app = create_app(runtime, manage=False)
    if question is not None:
        sys.exit(_explain(runtime, question, as_json))
    plugins, models, routes = list(runtime.plugins.names), [model.name for model in runtime.models], len(app.routes)
    lacks = lacking() if config.retrieval.vector_store else []
    elsewhere, missing = asyncio.run(_elsewhere(runtime)), _not_pulled(runtime)
    if as_json:
        found = {"config": str(config_path), "plugins": plugins, "models": models, "routes": routes}
        found["not_pulled"] = missing
        print_json({"ok": True, **found, "confinement_lacks": lacks, "vector_stores": elsewhere})
        return
    named = ", ".join(models) or "none"
    click.echo(f"{config_path} is good: {len(plugins)} plugins, models {named}, {routes} routes")
    if missing:
        click.echo(f"not pulled yet: {', '.join(missing)}; run appliance models pull with the same --config")
    for what in lacks:
        click.echo(f"documents will be parsed less confined: this machine lacks {what}")
    if elsewhere:
        click.echo(f"vector stores: {elsewhere}")


def _not_pulled(runtime: Runtime) -> list[str]:
    """The models that a start would miss: their sources have been asked for nothing yet."""
    from appliance.models.store import open_store

    store = open_store(runtime.config, runtime.plugins.model_sources())
    return [model.name for model in runtime.config.models if model.source and store.resolve(model.source) is None]


async def _elsewhere(runtime: Runtime) -> str:
    """As ``Runtime.elsewhere``, of a database that is there already."""
    if not await runtime.database.peek():
        return ""
    try:
        return await runtime.elsewhere()
    finally:
        await runtime.database.stop()


def _explain(runtime: Runtime, question: tuple[str, str, str], as_json: bool) -> int:
    """Print the answer to ``check --explain``; the exit code."""
    import msgspec

    from appliance.explain import explain

    try:
        answer = asyncio.run(explain(runtime, *question))
    except BadRequest as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        print_json(msgspec.to_builtins(answer, order="deterministic"))
    else:
        click.echo(f"{'yes' if answer.allowed else 'no'}: {answer.why}")
        for reason in answer.reasons:
            click.echo(f"{'+' if reason.ok else '-'} {reason.text}")
    return 0 if answer.allowed else 1


@cli.group("config", epilog=examples("appliance config show", "appliance config show --config prod.yaml --json"))
def config_group() -> None:
    """Show the configuration in force."""


@config_group.command("show", epilog=examples("appliance config show", "appliance config show --json"))
@config_option
@json_option
def config_show(config_path: Path, as_json: bool) -> None:
    """Print the configuration with every default, secrets masked."""
    import msgspec
    import yaml

    plain = masked(msgspec.to_builtins(load(config_path)))
    plain.pop("folder", None)
    if as_json:
        print_json(plain)
    else:
        click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), nl=False)


@cli.group("plugins", epilog=examples("appliance plugins list", "appliance plugins list --json"))
def plugins_group() -> None:
    """Show the plugins."""


@plugins_group.command("list", epilog=examples("appliance plugins list", "appliance plugins list --json"))
@config_option
@json_option
def plugins_list(config_path: Path, as_json: bool) -> None:
    """List the installed plugins; a * marks those in use."""
    from appliance.plugins import installed

    used = load(config_path).plugins if config_path.exists() else ()
    rows = [
        {"name": name, "used": name in used, "from": point.value, "package": _package(point)}
        for name, point in sorted(installed().items())
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        click.echo(f"{'*' if row['used'] else ' '} {row['name']:<16} {row['package']:<24} {row['from']}")
    click.echo("* listed under plugins in the configuration")


def _package(point: Any) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "?"


def main() -> None:
    """Run the command line; expected failures become one line and exit code 1."""
    try:
        cli(standalone_mode=False)
    except ApplianceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
