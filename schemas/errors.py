"""Errors a person can act on. The command prints their text as one line, without a traceback."""


class GeofixError(Exception):
    """Something the user can mend; the message says what and how."""


class InputError(GeofixError):
    """A setting, or a file it names, will not do: wrong usage, found before anything was done."""


class NotFound(InputError):
    """A name or id that the user gave does not exist, or more than one begins with it."""


class LakeError(GeofixError):
    """The lake cannot be read or written as requested."""


class LakeUnwritable(LakeError):
    """Nothing more can be written to the lake: whatever comes next would be lost like this."""


class Outage(GeofixError):
    """Something outside geofix is not there for now: the same run may succeed later without a change."""


class StageRefused(GeofixError):
    """A stage's precondition is not met, such as an unapproved snapshot."""


class AccountingError(GeofixError):
    """A stage's sums do not add up: a bug in geofix, never the user's fault."""
