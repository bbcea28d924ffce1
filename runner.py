#!/usr/bin/env python3
"""The command people and CI call. Needs nothing but Python >= 3.11; what else it needs it puts into `.venv` beside it."""

import sys

from modelarts_engine import bootstrap

if __name__ == "__main__":
    bootstrap.enter(sys.argv[1:])
    from modelarts_engine import cli

    sys.exit(cli.main(sys.argv[1:]))
