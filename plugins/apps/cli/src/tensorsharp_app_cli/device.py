"""The flags that say where to run, those of a single backend included."""

from tensorsharp import options

DEVICE = (
    *options.DEVICE,
    options.backend_flag("ggml", "lib", metavar="FOLDER", help="Another build of ggml's libraries, for the backend ggml."),
)
