"""The outside services, each in the JSON of the real one."""
