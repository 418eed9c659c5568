"""tensorsharp-app-cli: the commands that talk to a model from a terminal."""

from tensorsharp.plugin import PluginSpec

run_spec = PluginSpec(
    target="tensorsharp_app_cli.run:run", api=(1, 0), summary="Answer a prompt or a pipe; hold a conversation on a terminal."
)
chat_spec = PluginSpec(target="tensorsharp_app_cli.run:chat", api=(1, 0), summary="Hold a conversation with a model.")
