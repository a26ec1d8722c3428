"""`python -m infra.serve --model FOLDER --port N`: serve a checkpoint."""

import sys

from infra.serve.server import main

sys.exit(main())
