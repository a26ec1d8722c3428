"""Configuration models, one module a section."""
