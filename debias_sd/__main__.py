"""`python -m debias_sd` is `debias-sd`."""

import sys

from debias_sd.cli import main

sys.exit(main())
