"""`python -m tinsmith`, the same as the `tinsmith` command."""

from __future__ import annotations

import sys

from tinsmith.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
