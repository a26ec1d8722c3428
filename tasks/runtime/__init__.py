"""What a stage is and how it is run: items, chunks, ledger, commits, Ray."""
