"""`python -m proa`: the same as the command `proa`."""

import sys

from .cli.main import main

sys.exit(main())
