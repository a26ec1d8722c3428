"""What holds for every test."""

from hypothesis import settings

# A busy machine is slow: how long an example takes says nothing about whether it is right.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
