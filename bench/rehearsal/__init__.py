"""The profile `production` on this machine: `make rehearsal`."""
