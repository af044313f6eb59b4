"""What the tests of the monitoring share: where things are, and TAP."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
MONITORING = HERE.parents[1] / "monitoring"
sys.path.insert(0, str(HERE.parent / "stress"))

from lib import tap  # noqa: E402,F401
