"""tensorsharp-app-cli: the commands that talk to models from a terminal, manage them and measure them."""

from tensorsharp.plugin import PluginSpec

run_spec = PluginSpec(
    target="tensorsharp_app_cli.run:run", api=(1, 0), summary="Answer a prompt or a pipe; hold a conversation on a terminal."
)
chat_spec = PluginSpec(target="tensorsharp_app_cli.run:chat", api=(1, 0), summary="Hold a conversation with a model.")
show_spec = PluginSpec(target="tensorsharp_app_cli.show:show", api=(1, 0), summary="Show what a model file holds and needs.")
bench_spec = PluginSpec(
    target="tensorsharp_app_cli.bench:bench", api=(1, 0), summary="Measure reading and writing speed over context lengths."
)
pull_spec = PluginSpec(
    target="tensorsharp_app_cli.models:pull", api=(1, 0), summary="Download a model from the Hugging Face hub."
)
list_spec = PluginSpec(target="tensorsharp_app_cli.models:list_", api=(1, 0), summary="List the models that were downloaded.")
rm_spec = PluginSpec(target="tensorsharp_app_cli.models:rm", api=(1, 0), summary="Delete a model that was downloaded.")
alias_spec = PluginSpec(target="tensorsharp_app_cli.models:alias", api=(1, 0), summary="Give models short names.")
completion_spec = PluginSpec(
    target="tensorsharp_app_cli.completion:completion", api=(1, 0), summary="Print what a shell needs to complete commands."
)
batch_spec = PluginSpec(target="tensorsharp_app_cli.batch:batch", api=(1, 0), summary="Answer a file of requests, many at once.")
ps_spec = PluginSpec(target="tensorsharp_app_cli.server:ps", api=(1, 0), summary="List the models that a server has in memory.")
stop_spec = PluginSpec(target="tensorsharp_app_cli.server:stop", api=(1, 0), summary="Take a model out of a server's memory.")
