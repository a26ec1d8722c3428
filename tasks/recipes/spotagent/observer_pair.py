"""SpotAgent's two models as one agent (3.2.1): an Observer that sees, and a Tool-Call agent that reasons and acts.

The Observer describes each picture, d_vis = obs(image, prompt, zoom box or none), the whole one and every region. The
Tool-Call agent reads these words in place of pixels. What comes out is a reply as a single agent that sees would have
written it: the thought begins with what the newest picture shows. So what a zoom shows is read in the next thought,
which bears loss, and no tool response holds words that a trained agent would never be given.
"""

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from schemas.messages import ChatReply, Message, Usage, json_object, parts_of, text_part
from tasks.agent.attempt import Sampling
from tasks.agent.tagged import split_thought, without_tags
from tasks.imaging.images import inspect
from tasks.services.chat import Chat

# How sure the Observer is and how high the letters are help the Tool-Call agent to choose; they are not observations.
_DOUBT = re.compile(r",? (?:confidence|height) \d+(?:\.\d+)?(?: px)?\b")
_BOX = re.compile(r",? ?(?:at |in )?bbox_2d ?\[[^\]\n]*\]")


_TEXT_HEADING = "## Text\n"


class ObserverPair:
    """Replies for one trajectory; make a new one for the next."""

    def __init__(
        self,
        chat: Chat,
        words: Mapping[str, str],
        observer: str,
        planner: str,
        sampling: Sampling,
        tells_all: bool = True,
    ) -> None:
        """`tells_all`: a thought begins with everything the newest picture shows, else it is the planner's alone."""
        self._chat, self._words, self._tells_all = chat, words, tells_all
        self._observer, self._planner, self._sampling = observer, planner, sampling
        self._told: list[Message] = []
        self._read = 0  # messages of the environment that the Tool-Call agent has been told of
        self._reply: ChatReply | None = None
        self.observations: list[str] = []

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> ChatReply:
        fresh: list[str] = []
        usage = Usage()
        for message in messages[self._read :]:
            usage += await self._tell(message, fresh)
        self._read = len(messages)
        reply = await self._chat.complete(self._planner, self._told, tools=tools, **self._sampling.options())
        self._reply = reply
        thought, reply_text = split_thought(reply.text)
        if not thought and reply.tool_calls:
            thought, reply_text = reply_text, ""
        whole = "\n\n".join(part for part in (*(fresh if self._tells_all else ()), thought) if part)
        text = f"<think>{whole}</think>{reply_text}" if whole else reply_text
        return ChatReply(text, reply.tool_calls, reply.finish_reason, usage + reply.usage, reply.model)

    async def _tell(self, message: Message, fresh: list[str]) -> Usage:
        """Pass a message of the environment on in words; what was newly seen is added to `fresh`."""
        role, content = message["role"], message["content"]
        if role == "assistant":
            # As it wrote it itself: what the Observer saw stands in the messages before.
            written = self._reply.text if self._reply is not None else content
            self._told.append({**message, "content": written})
            return Usage()
        url = next((p["image_url"]["url"] for p in parts_of(content) if p["type"] == "image_url"), None)
        text = "".join(part["text"] for part in parts_of(content) if part["type"] == "text")
        if role == "system":
            self._told.append({"role": "system", "content": text + self._words["planner"]})
            return Usage()
        if url is None:
            self._told.append({**message, "content": text})
            return Usage()
        is_whole = role == "user"
        description, usage = await self._observe(url, self._words["whole" if is_whole else "region"])
        self.observations.append(description)
        seen = _DOUBT.sub("", without_tags(description))
        if is_whole:
            fresh.append(seen)
            facts = inspect(base64.b64decode(url.partition(",")[2]))
            told = (
                f"{text}\n\nThe image is {facts.width} x {facts.height} pixels. The Observer reports:\n\n{description}"
            )
        else:
            # Boxes inside a region are in pixels of the region; those of calls are in pixels of the whole.
            fresh.append("The enlarged region shows:\n" + _BOX.sub("", _text_section(seen)))
            fields = json_object(text)
            result = {"text": text} if fields is None else fields
            told = json.dumps({**result, "description": description}, ensure_ascii=False)
        self._told.append({**message, "content": told})
        return usage

    async def _observe(self, url: str, words: str) -> tuple[str, Usage]:
        messages: list[Message] = [
            {"role": "system", "content": self._words["observer"]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, text_part(words)]},
        ]
        reply = await self._chat.complete(self._observer, messages, max_tokens=self._sampling.max_tokens)
        return reply.text.strip(), reply.usage


def _text_section(description: str) -> str:
    """What a region's description says under the heading Text, where it has one: the rest repeats the whole's."""
    _, heading, section = description.partition(_TEXT_HEADING)
    return section.strip() if heading and section.strip() else description
