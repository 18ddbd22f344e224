"""``hastore completion``: the script that makes a shell complete hastore's commands and flags."""

from __future__ import annotations

import rich_click as click

from hastore_cli.app.example_command import ExampleCommand


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
    """Print the script that makes a shell complete commands, flags and their words."""
    from click.shell_completion import get_completion_class

    script_class = get_completion_class(shell)
    assert script_class is not None
    root = ctx.find_root()
    click.echo(script_class(root.command, {}, "hastore", "_HASTORE_COMPLETE").source())
