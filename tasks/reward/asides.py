"""What a model says aloud: its text without thoughts, tool calls and tool responses."""

import re

_NAMES = (
    "think|thinking|thought|thoughts|reasoning|reflection|scratchpad"
    "|tool_calls?|tool_responses?|tool_results?|tool_outputs?|function_calls?|function_results?|observation"
)
_TAG = re.compile(rf"<(?P<close>/?)(?P<name>{_NAMES})(?:\s[^<>]{{0,80}})?>", re.IGNORECASE)


def spoken(text: str) -> str:
    """The text outside of all asides.

    A closing tag without an opening one ends an aside that began in the prompt, so all before it goes. An aside that is
    not closed runs to the end: what a thought quotes is no answer, whether or not there was room to finish it.
    """
    kept: list[str] = []
    inside: list[str] = []
    at = 0
    for tag in _TAG.finditer(text):
        name = tag["name"].casefold().removesuffix("s")
        if not inside:
            kept.append(text[at : tag.start()])
        if not tag["close"]:
            inside.append(name)
        elif name in inside:
            while inside.pop() != name:
                pass
        elif not inside:
            kept.clear()
        at = tag.end()
    if not inside:
        kept.append(text[at:])
    # A line break keeps what stood before an aside from running into what follows it.
    return "\n".join(piece for piece in kept if piece.strip())
