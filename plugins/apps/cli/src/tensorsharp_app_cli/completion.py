"""`tensorsharp completion`: what a shell needs to complete commands, flags and names of models."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from tensorsharp_app_cli.output import emit

SCRIPTS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, flags and models in SHELL.

    Put one of these into the shell's file:

    \b
    bash  eval "$(tensorsharp completion bash)"      in ~/.bashrc
    zsh   eval "$(tensorsharp completion zsh)"       in ~/.zshrc
    fish  tensorsharp completion fish | source       in ~/.config/fish/config.fish
    """
    script = SCRIPTS[shell](ctx.find_root().command, {}, "tensorsharp", "_TENSORSHARP_COMPLETE").source()
    emit(script, end="\n")
