"""`python -m infra.offline`: serve the offline world."""

import sys

from infra.offline.server import main

sys.exit(main())
