"""What a stage is and how it is run: items, chunks, ledger, commits, Ray."""

import os

# Ray's name for its loopback mode. Ray reads it once, when it is imported; its servers, which run the code they are
# sent, would listen on every interface otherwise. Clusters elsewhere can still be joined.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
