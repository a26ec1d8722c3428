"""What `geofix locate` does for each picture, and how it shows it in the terminal while it happens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from flows.agents import AgentSession
from schemas.config import Config
from schemas.errors import InputError
from schemas.messages import Message
from schemas.settings.models import TRAINED
from tasks.agent.attempt import PACKAGED, PACKAGED_TOKENS, Sampling, SingleAgent
from tasks.agent.environment import Environment, run_agent
from tasks.agent.page import Located
from tasks.agent.picture import Picture, open_picture
from tasks.agent.readable import answer_of, arguments_of, found_in
from tasks.agent.tagged import split_thought
from tasks.evaluate.radius import known_radius
from tasks.imaging.decode import BadImage
from tasks.lake import Lake
from tasks.recipes import spotmini
from tasks.recipes.recipe import Recipe
from tasks.reward.answer import ParsedAnswer, parse_answer

SHOWN_CHARS = 300


def read_picture(path: Path, config: Config, model: str | None = None) -> Picture:
    """A picture of the user's, in the size its model is shown: boxes are in those pixels.

    Without a model, as for tools that any client may call, in the size that models of services are shown.
    """
    try:
        original = path.read_bytes()
        if model == PACKAGED:
            return open_picture(original, spotmini.MAX_PIXELS, spotmini.MIN_PIXELS)
        if model is not None and config.models.role(model).endpoint == TRAINED:
            return open_picture(original, config.train.image_max_pixels, config.train.image_min_pixels)
        return open_picture(original, config.synthesize.view_max_pixels, config.synthesize.view_min_pixels)
    except BadImage as error:
        raise InputError(f"{path}: not a picture that can be read ({error})") from None


async def locate_all(
    session: AgentSession, paths: Sequence[Path], model: str, recipe: Recipe, terminal: "Terminal"
) -> list[Located]:
    """One trajectory a picture, one after the other, and the radius that the model's last evaluation gives it."""
    pictures = [(path, read_picture(path, session.config, model)) for path in paths]
    tools, max_tokens = session.tools, session.config.synthesize.max_tokens
    if model == PACKAGED:
        recipe, max_tokens = spotmini.RECIPE, PACKAGED_TOKENS
    chat, lake = session.chat(), Lake(session.config.lake)
    located = []
    try:
        for path, picture in pictures:
            terminal.begin(path)
            settings = session.config.evaluate.radius
            environment = Environment(picture, tools, recipe.prompt)
            sampling = Sampling(max_tokens=max_tokens)
            trajectory = await run_agent(environment, SingleAgent(chat, model, sampling), terminal.message)
            answer = parse_answer(trajectory.final_text)
            result = Located(path.name, model, recipe.name, picture, trajectory, environment.pictures, answer)
            if isinstance(answer, ParsedAnswer) and answer.lat is not None and answer.lon is not None:
                within = known_radius(lake, model, recipe.name, (answer.lat, answer.lon), settings)
                result = replace(result, radius=within.words, radius_km=within.radius_km, abstains=within.abstains)
            terminal.end(result)
            located.append(result)
    finally:
        await chat.close()
    return located


@dataclass
class Terminal:
    """Thoughts, calls, results and the answer, as they come."""

    silent: bool = False

    def __post_init__(self) -> None:
        self._console = Console(quiet=self.silent, highlight=False)
        self._no_radius = ""  # why, as it was said of a picture before

    def begin(self, path: Path) -> None:
        self._console.rule(f"[bold]{escape(path.name)}")

    def message(self, message: Message) -> None:
        """Show one message of the conversation; text of models and pages is shown as it is, never as markup."""
        if message["role"] == "assistant":
            thought, reply = split_thought(message["content"])
            if thought:
                self._console.print(Text(thought, style="italic"), soft_wrap=False)
            for call in message.get("tool_calls", []):
                function = call["function"]
                self._console.print(
                    Text(f"→ {function['name']} {arguments_of(function['arguments'])}", style="bold cyan")
                )
            if reply:
                self._console.print(Panel(Text(answer_of(reply)), title="answer", border_style="green", expand=False))
        elif message["role"] == "tool":
            for line in result_lines(message["content"]):
                self._console.print(Text(f"← {line}", style="dim"), soft_wrap=False)

    def end(self, located: Located) -> None:
        """The last line: where, and a link to a map."""
        if located.map_link:
            self._console.print(Text(f"{located.where}  {located.map_link}", style="bold"), soft_wrap=True)
        else:
            self._console.print(Text(f"no place: {located.problem}", style="bold red"))
        if located.radius and located.radius != self._no_radius:
            self._console.print(Text(located.radius), soft_wrap=True)
        if located.radius_km is None:  # the same for every picture of this model
            self._no_radius = located.radius


def result_lines(content: Any) -> list[str]:
    """A tool's answer as a person reads it, a line for each thing found."""
    parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    lines = [entry.line() for entry in found_in(" ".join(part for part in parts if part))]
    return [line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…" for line in lines]
