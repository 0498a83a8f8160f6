"""Makes each room's test helpers importable by their plain names."""

import sys
from pathlib import Path

for folder in ("engine", "drive"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
