"""The Earth: distance, cells, boundaries, seeded draws."""
