"""What becomes of a stage's items: worked on in chunks, committed, accounted for, redone or withdrawn."""
