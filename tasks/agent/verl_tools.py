"""The agents' tools as verl's tool agent calls them: one class, named by every entry of the tool configuration.

The schema that a model is shown is ours key by key: verl's own form of it would leave out the items of a list. A
service that fails is told to the reward hook (`tool_outage`), which excludes the rollout.
"""

import io
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import ConfigDict, Field
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from schemas.load import load_config
from schemas.messages import ToolCall
from tasks.agent.picture import Picture, open_picture
from tasks.agent.service_tools import open_toolbox
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import TOOLS
from tasks.services import connect


class OwnSchema(OpenAIFunctionToolSchema):  # type: ignore[misc]
    """A tool's schema as it stands; verl dumps it for the chat template without what was not set."""

    model_config = ConfigDict(extra="allow")
    whole: dict[str, Any] = Field(default_factory=dict)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return self.whole


class GeofixTool(BaseTool):  # type: ignore[misc]
    """One tool; `config` has its name, the folder of the export and the settings file in it."""

    def __init__(self, config: dict[str, Any], tool_schema: Any = None) -> None:
        whole = TOOLS[config["tool"]].openai()
        super().__init__(config, OwnSchema.model_validate({**whole, "whole": whole}))
        self._offered = tuple(config["offered"])
        self._limits = config.get("limits") or (None, None)
        self._folder, self._settings = Path(config["folder"]), str(config["settings"])
        self._pictures: dict[str, str] = {}

    async def create(
        self, instance_id: str | None = None, create_kwargs: dict[str, Any] | None = None, **_: Any
    ) -> tuple[str, Any]:
        made, empty = await super().create(instance_id)
        self._pictures[made] = (create_kwargs or {}).get("picture") or ""
        return made, empty

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], agent_data: Any = None, **_: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        name = self._pictures[instance_id]
        picture = _opened(str(self._folder / name), self._settings) if name else None
        call = ToolCall("call_1", self.name, json.dumps(parameters))
        result = await _toolbox(self._settings).limited(*self._limits).call(call, picture, self._offered)
        if result.record.outage and agent_data is not None:
            agent_data.extra_fields["tool_outage"] = result.record.outage
        shown = [] if result.picture is None else [Image.open(io.BytesIO(result.picture)).convert("RGB")]
        response = ToolResponse(text=result.text, image=shown) if shown else ToolResponse(text=result.text)
        return response, 0.0, {"succeeded": result.record.succeeded}

    async def release(self, instance_id: str, **_: Any) -> None:
        self._pictures.pop(instance_id, None)


@lru_cache(maxsize=2)
def _toolbox(settings: str) -> Toolbox:
    loaded = load_config(file=settings)
    return open_toolbox(connect(loaded.services, os.environ, ("search", "geocoder", "maps")), None)


@lru_cache(maxsize=64)
def _opened(path: str, settings: str) -> Picture:
    train = load_config(file=settings).train
    return open_picture(Path(path).read_bytes(), train.image_max_pixels, train.image_min_pixels)
