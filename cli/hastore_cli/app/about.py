"""``hastore version`` and ``hastore completion``."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Final

import rich_click as click

from hastore.native.in_use import state
from hastore_cli.app.command import ExampleCommand, output_option
from hastore_cli.app.output import echo_json
from hastore_cli.app.terminal import tell, tell_text

_PARTS: Final = ("trio", "attrs", "structlog", "isal", "click", "rich")


def hastore_version() -> str:
    """Return the installed version; in a bare checkout a text that says so."""
    return _version_of("hastore") or "0 (not installed)"


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@click.command(cls=ExampleCommand, examples=("hastore version", "hastore version -o json"))
@output_option()
def version(output: str) -> None:
    """Print the versions of hastore, Python, the kernel and the main packages."""
    versions = {
        "hastore": hastore_version(),
        "python": platform.python_version(),
        "extension": state,
        "kernel": f"{platform.system()} {platform.release()}",
        **{part: _version_of(part) for part in _PARTS},
    }
    if output == "json":
        echo_json({"schema": "hastore.version/1", **versions})
        return
    for name, text in versions.items():
        tell(f"{name:<10} {text or '-'}")


@click.command(
    cls=ExampleCommand,
    examples=(
        'eval "$(hastore completion bash)"      # in ~/.bashrc',
        'eval "$(hastore completion zsh)"       # in ~/.zshrc',
        "hastore completion fish > ~/.config/fish/completions/hastore.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete commands, flags and values."""
    from click.shell_completion import get_completion_class

    script_class = get_completion_class(shell)
    assert script_class is not None
    root = ctx.find_root()
    tell_text(script_class(root.command, {}, "hastore", "_HASTORE_COMPLETE").source())
