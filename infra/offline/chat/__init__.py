"""The chat models of the offline world, over the OpenAI chat completions protocol.

They decide from the pixels and the messages they are sent. Nothing here imports the world's places:
what a model knows is general knowledge (a gazetteer, facts about countries), never the truth of a picture.
"""

from infra.offline.chat.endpoint import chat_application

__all__ = ["chat_application"]
