"""`python -m trellis`: the command."""

import sys

from trellis.cli.main import main

sys.exit(main())
