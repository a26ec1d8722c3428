"""What every configuration section is: frozen, complete, and strict about unknown fields."""

from typing import Any

from pydantic import BaseModel, ConfigDict

# Put into a field's json_schema_extra: changing it changes how fast or where work is done, not what comes out.
OPERATIONAL: dict[str, Any] = {"operational": True}
# Likewise, of a field that was added to a section: with its default, what was made before it is still what comes out.
ADDED: dict[str, Any] = {"added": True}


class Settings(BaseModel):
    """A configuration section. Wrong or unknown fields are refused when it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def identity(self) -> dict[str, Any]:
        """The fields that decide what comes out; a stage whose identity is unchanged has nothing to redo."""
        fields: dict[str, Any] = {}
        for name, info in type(self).model_fields.items():
            extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            value = getattr(self, name)
            if extra.get("operational") or (extra.get("added") and value == info.default):
                continue
            fields[name] = value.identity() if isinstance(value, Settings) else self.model_dump(mode="json")[name]
        return fields
