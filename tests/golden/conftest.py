"""The tests of this folder share golden_kit.py, and resume tasks with golden_app.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
