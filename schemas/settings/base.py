"""What every configuration section is: frozen, complete, and strict about unknown fields."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A configuration section. Wrong or unknown fields are refused when it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
