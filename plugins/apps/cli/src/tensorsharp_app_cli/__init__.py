"""tensorsharp-app-cli: the commands that talk to a model from a terminal, look into its file and measure it."""

from tensorsharp.plugin import PluginSpec

run_spec = PluginSpec(
    target="tensorsharp_app_cli.run:run", api=(1, 0), summary="Answer a prompt or a pipe; hold a conversation on a terminal."
)
chat_spec = PluginSpec(target="tensorsharp_app_cli.run:chat", api=(1, 0), summary="Hold a conversation with a model.")
show_spec = PluginSpec(target="tensorsharp_app_cli.show:show", api=(1, 0), summary="Show what a model file holds and needs.")
bench_spec = PluginSpec(
    target="tensorsharp_app_cli.bench:bench", api=(1, 0), summary="Measure reading and writing speed over context lengths."
)
