"""Maps of the world from above, of the same ground as the scenes and panoramas."""
