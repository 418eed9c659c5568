"""tensorsharp-app-server: local models over HTTP."""

from tensorsharp.plugin import PluginSpec

serve_spec = PluginSpec(
    target="tensorsharp_app_server.serve:serve", api=(1, 0), summary="Serve models over HTTP, as OpenAI's interface and others."
)
