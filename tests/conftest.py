"""Makes each room's test helpers importable by their plain names."""

import sys
from pathlib import Path

for folder in ("engine", "drive", "gateway"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
