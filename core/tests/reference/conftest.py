"""Makes the helpers beside the tests importable, as pytest imports test files without their folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
