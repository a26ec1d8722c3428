"""Data files of the offline world; README.md says where each comes from."""
