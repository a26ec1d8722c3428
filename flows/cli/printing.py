"""Results on standard output."""

import json
import sys
from typing import Any


def print_json(value: Any) -> None:
    """A result for machines, alone on standard output."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False, default=str)
    print()
