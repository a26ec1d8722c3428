"""What is remembered: Delta tables, pictures, names."""

from tasks.lake.tables import Commit, Lake

__all__ = ["Commit", "Lake"]
