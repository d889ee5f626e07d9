"""`python -m scalerl` is `scalerl`."""

import sys

from scalerl.cli import main

sys.exit(main())
