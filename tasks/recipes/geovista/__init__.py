"""GeoVista (3.3): boxes and searches are proposed with a thought each, executed, and assembled into one trajectory."""

from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.environment import Ask
from tasks.agent.prompt import Budgets, Prompt
from tasks.recipes.geovista.form import DIRECT, QUESTION, SYSTEM, addresses_of, gold, judge
from tasks.recipes.geovista.proposals import Proposals, forms
from tasks.recipes.geovista.reward import REWARD
from tasks.recipes.recipe import Recipe, Writer, WriterContext
from tasks.runtime.labelled import PictureFilter

BOXES = """\
Propose up to {count} regions of this image that would tell most about where it was taken, such as signs, shop fronts, \
road markings or landmarks; of a scene seen from above, coastlines, harbours, airports, rivers or the pattern of its \
streets and fields. The image is {width} x {height} pixels. Give each as bbox_2d [x1, y1, x2, y2] in pixels, \
with the thought that leads you to look there: what you see there now and what you hope to learn."""

QUERIES = """\
These are the regions you asked to see. Propose up to {count} web searches that would verify where the image was \
taken, each with the thought that leads to it: what you read or saw in the regions, and what the search should tell. \
Use only names that you can read in the image; a scene seen from above has none, so describe its shapes."""


def _proposals(context: WriterContext) -> tuple[str, Ask]:
    return "proposals", Proposals(context)


def _roles(settings: SynthesizeSettings) -> tuple[str, ...]:
    return (settings.agent,)


RECIPE = Recipe(
    name="geovista",
    prompt=Prompt(
        SYSTEM,
        QUESTION,
        ("image_zoom_in_tool", "search_web"),
        Budgets(calls=6, turns=6, context=32_768),
        {"boxes": BOXES, "queries": QUERIES},
        search_results=10,
    ),
    direct=Prompt(DIRECT, QUESTION, budgets=Budgets(calls=0, turns=1)),
    judge=judge,
    kept_when="calls and form only: the paper has no filter by the answer, so few or none are rejected",
    gold=gold,
    addresses_of=addresses_of,
    # Table 2 has panoramas, photos and satellite pictures; 3.2: at least 1 M pixels
    pictures=PictureFilter(("panorama", "photo", "satellite"), 1_000_000),
    writer=Writer(_proposals, _roles, forms=forms()),
    reward=REWARD,
)
