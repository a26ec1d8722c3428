"""What thoughts claim, held against results, pictures and the answer: planted false statements are named, true ones,
hedged ones and other uses of quotation marks are not."""

import asyncio
import json
from dataclasses import replace

import pytest

from schemas.messages import ChatReply, Usage
from schemas.settings.synthesize import SynthesizeSettings
from tasks.agent.claims import contradictions, quoted_signs, unseen_signs
from tasks.agent.environment import Trajectory
from tasks.recipes.recipe import RECIPES
from tasks.reward.answer import Address
from tasks.reward.outcome import Truth
from tasks.synthesize.rejection import misplaced_answer
from tasks.synthesize.trajectories import WorkerContext, _judge

FRANCE = Truth(48.8566, 2.3522, Address("France", "Île-de-France", "Paris"))
BRITAIN = Truth(51.5, -0.12, Address("United Kingdom", "England", "London"))
PICTURE = {"type": "image_url", "image_url": {"url": f"sha256:{'0' * 64}.jpg"}}
ANSWER = "<answer>Country: France\nCity: Paris\nLatitude: 48.8566\nLongitude: 2.3522</answer>"
TIPS = {
    "tips": [
        {"id": "p1", "name": "Boulangerie Vasseur", "district": "Villeurbanne, France"},
        {"id": "p2", "name": "Vasseur Optique", "district": "Lyon, France"},
    ]
}
POINTS = {"results": [{"display_name": "Paris, Île-de-France, France", "lat": 48.8566, "lon": 2.3522}]}
PAGES = {"results": [{"title": "Boulangerie Vasseur", "url": "https://a.example", "content": "A bakery in Lyon."}]}
NONE = {"results": []}


def after(thought, result=None, answer=ANSWER):
    """A trajectory with at most one call: the picture, the call and its result, a thought with the answer."""
    messages = [{"role": "user", "content": [PICTURE, {"type": "text", "text": "Where?"}]}]
    if result is not None:
        call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"text": "Vasseur"}'}}
        messages.append({"role": "assistant", "content": "<think>I look.</think>", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "c", "content": json.dumps(result, ensure_ascii=False)})
    messages.append({"role": "assistant", "content": f"<think>{thought}</think>{answer}"})
    return Trajectory(tuple(messages), final_text=messages[-1]["content"])


FALSE_OF_RESULTS = [
    ("The map has nothing for Boulangerie Vasseur.", TIPS),
    ("The map has nothing for Vasseur Optique, so I go on.", TIPS),
    ("The search returned no results.", TIPS),
    ("My query came back empty, as the map returned nothing.", TIPS),
    ("The geocoder does not know Paris, France.", POINTS),
    ("The geocoder doesn't list Paris.", POINTS),
    ("There were no matches for Boulangerie Vasseur on the map.", TIPS),
    ("The lookup found nothing for “Vasseur Optique”.", TIPS),
    ("The search found nothing about Boulangerie Vasseur.", PAGES),
    ("Die Suche ergab keine Treffer für Boulangerie Vasseur.", TIPS),
    ("Die Karte zeigt nichts zu Boulangerie Vasseur.", TIPS),
    ("La recherche n'a rien trouvé pour Boulangerie Vasseur.", TIPS),
    ("La búsqueda no encontró nada sobre Boulangerie Vasseur.", TIPS),
    ("A busca não encontrou nada sobre Boulangerie Vasseur.", TIPS),
    ("La ricerca: nessun risultato per Boulangerie Vasseur.", TIPS),
    ("搜索没有找到任何结果。", TIPS),
    ("The search results confirm that the bakery is in Lyon.", NONE),
    ("A page found for Vasseur says: a bakery in Lyon.", NONE),
    ("The geocoder places it in the north of the country.", {"error": "not found"}),
    ("Die Suche bestätigt Lyon.", NONE),
    ("La recherche confirme que c'est Lyon.", NONE),
    ("The geocoder places this address in Brazil.", POINTS),
    ("The map shows that it lies in Germany.", POINTS),
]
TRUE_OF_RESULTS = [
    ("The map has nothing for Café de la Paix.", TIPS),
    ("The map has nothing for Vasseur, Marseille.", TIPS),
    ("The search found nothing useful.", TIPS),
    ("There was no exact match, only a bakery of that name.", TIPS),
    ("The pages say nothing of these signs.", PAGES),
    ("The geocoder does not know Rue Basse, Lyon, France.", POINTS),
    ("The map lists for Vasseur: Boulangerie Vasseur, Villeurbanne; Vasseur Optique, Lyon.", TIPS),
    ("If the search had returned no results, I would have zoomed in.", TIPS),
    ("The search returned no results.", NONE),
    ("The geocoder does not know the address; a search should confirm the town.", NONE),
    ("The call failed, so it tells me nothing.", {"error": "rate limit"}),
    ("I will search the map, which hopefully shows the bakery.", NONE),
    ("The map might show it; I could look for the street next.", NONE),
    ("A geocoder gives coordinates, so I look up Marand, Iran.", NONE),
    ("A geocoder gives coordinates, so I look up São Paulo, Brazil.", POINTS),
    ("The geocoder places Paris, France at 48.8566, 2.3522.", POINTS),
    ("The map shows a French city, unlike Germany.", POINTS),
    ("The results point to Lyon, not to Belgium.", POINTS),
    ("Die Suche ergab zwei Treffer.", TIPS),
    ("La recherche donne deux résultats.", TIPS),
    ("No sign names a town outright.", TIPS),
    ("Nothing else speaks for another country.", TIPS),
    ("There is no street name in the picture.", TIPS),
    ("I know nothing of this village.", TIPS),
]


@pytest.mark.parametrize(("thought", "result"), FALSE_OF_RESULTS)
def test_a_statement_that_its_results_refute_is_named(thought, result):
    assert contradictions(after(thought, result), FRANCE)


@pytest.mark.parametrize(("thought", "result"), TRUE_OF_RESULTS)
def test_a_statement_that_its_results_bear_out_is_not(thought, result):
    assert contradictions(after(thought, result), FRANCE) == []


@pytest.mark.parametrize(
    ("thought", "country"),
    [
        ("Traffic keeps to the left.", FRANCE),
        ("I look at the whole picture first: daylight, sharp; traffic keeps to the left; sky blue.", FRANCE),
        ("Cars drive on the right here.", BRITAIN),
        ("This is right-hand traffic.", BRITAIN),
        ("- Driving side: left (the road reaches farther on the right of the camera).", FRANCE),
        ("Hier herrscht Linksverkehr.", FRANCE),
        ("On roule à gauche ici.", FRANCE),
        ("Aquí se conduce por la izquierda.", FRANCE),
        ("Здесь левостороннее движение.", FRANCE),
        ("这里车辆靠左行驶。", FRANCE),
    ],
)
def test_the_wrong_side_of_the_road_is_named(thought, country):
    answer = ANSWER if country is FRANCE else ANSWER.replace("France", "United Kingdom")
    assert contradictions(after(thought, answer=answer), country)


@pytest.mark.parametrize(
    "thought",
    [
        "Traffic keeps to the right.",
        "A car is parked on the left.",
        "If traffic kept to the left, it would be Britain.",
        "Driving is on the left or on the right, I cannot tell.",
        "Countries that drive on the left are ruled out.",
        "They do not drive on the left.",
        "The road reaches farther on the left of the camera.",
        "Hier herrscht Rechtsverkehr, kein Linksverkehr.",
        "On ne roule pas à gauche.",
    ],
)
def test_a_right_or_unclaimed_side_is_not(thought):
    assert contradictions(after(thought), FRANCE) == []


def test_a_conclusion_unlike_the_answer_is_named():
    assert contradictions(after("So I settle on Antwerp in Belgium."), FRANCE)
    assert contradictions(after("The picture was taken in Germany."), FRANCE)
    assert not contradictions(after("I settle on Paris, France."), FRANCE)
    assert not contradictions(after("I conclude that it is not Belgium but its neighbour."), FRANCE)


READINGS = ['"Boulangerie Vasseur"\n"Rue de la République"\n"+33 72 548 33 11"\n"パン屋 田中"']
UNSEEN = [
    'I read in the picture: "Boulangerie Vasseur"; "Wiesbaden".',
    "A sign reads 'Wiesbaden'.",
    "The largest writing is 'Café Roma'.",
    'The zoom shows: "Hotel Astoria".',
    "Auf dem Schild steht „Bäckerei Kranz“.",
    "L'enseigne indique «Pharmacie du Lac».",
    "El letrero dice “Panadería Sol”.",
    "На вывеске написано «Аптека Нева».",
    "看板には「やおや 鈴木」と書かれている。",
    'On "Rue Victor Hugo" there are shops.',
]
SEEN = [
    'I read in the picture: "Boulangerie Vasseur"; "Rue de la République".',
    "A sign reads 'BOULANGERIE' and another 'Rue de la Republique'.",
    "The sign says 'Boulangerie Vaseur'.",  # a letter is missing
    'The phone number "+33 72 548 33 11" is French.',
    "看板には「パン屋 田中」と書かれている。",
    "The word 'boulangerie' is French for 'bakery'.",
    "I search for 'Vasseur bakery Lyon'.",
    "A sign such as 'Gare' would help.",
    "There is no sign that says 'Sortie'.",
    "It's the town's main street, a 'typical' one.",
    "If it said 'Apotheke', it would be German.",
    '"Boulangerie … Vasseur" stands over the door.',
]


@pytest.mark.parametrize("thought", UNSEEN)
def test_a_sign_that_no_picture_shows_is_named(thought):
    found = unseen_signs(after(thought), READINGS)
    assert found and "Vasseur" not in "".join(found)


@pytest.mark.parametrize("thought", SEEN)
def test_what_is_read_looked_for_or_explained_is_not(thought):
    assert unseen_signs(after(thought), READINGS) == []


def test_a_chain_of_thought_in_json_is_read_as_well():
    level = {"Clues": ["the sign 'Wiesbaden'"], "Reasoning": "A sign gives the street: 'Rue de la République'."}
    text = json.dumps({"ChainOfThought": {"CountryIdentification": level}, "FinalAnswer": "France; ; "})
    trajectory = Trajectory(
        ({"role": "user", "content": [PICTURE]}, {"role": "assistant", "content": text}), final_text=text
    )
    assert unseen_signs(trajectory, READINGS) == ['"Wiesbaden"']
    assert list(quoted_signs("'Rue X' and ‘Rue Y’, it's 5 o'clock")) == ["Rue X", "Rue Y"]


def test_a_sign_invented_once_stays_invented():
    first = {"role": "assistant", "content": "<think>A sign reads 'Wiesbaden'.</think>"}
    first["tool_calls"] = [{"id": "c", "function": {"name": "search", "arguments": '{"query": "Oper"}'}}]
    tool = {"role": "tool", "tool_call_id": "c", "content": json.dumps({"results": [{"title": "Wiesbaden"}]})}
    last = {"role": "assistant", "content": f"<think>As I said, the sign reads 'Wiesbaden'.</think>{ANSWER}"}
    opening = {"role": "user", "content": [PICTURE]}
    assert unseen_signs(Trajectory((opening, first, tool, last)), READINGS) == ['"Wiesbaden"']


@pytest.mark.parametrize(
    ("lat", "lon", "city", "misplaced"),
    [
        (48.8566, 2.3522, "Paris", False),
        (48.80, 2.13, "Versailles", False),
        (48.8566, 2.3522, "Nowhere-les-Bains", False),  # a name that is not known says nothing
        (43.30, 5.37, "Paris", True),
        (50.85, 4.35, "Paris", True),
        (50.85, 4.35, "Nowhere-les-Bains", True),  # in Belgium
        (0.0, 0.0, "Paris", True),
    ],
)
def test_the_answers_point_lies_in_its_country_and_town(lat, lon, city, misplaced):
    text = f"<answer>Country: France\nCity: {city}\nLatitude: {lat}\nLongitude: {lon}</answer>"
    assert bool(misplaced_answer(after("So.", answer=text))) == misplaced


class Reader:
    """A chat client whose model reads a given text in every picture."""

    def __init__(self, text):
        self.text, self.asked = text, []

    async def complete(self, role, messages, max_tokens):
        self.asked.append((role, messages))
        return ChatReply(self.text, usage=Usage(prompt_tokens=5))


def test_pictures_are_read_again_by_a_model_that_is_shown_nothing_else():
    own = RECIPES["geovista"].gold(FRANCE, 4)  # its answer has no coordinates
    quoting = after("A sign reads 'Wiesbaden'.", answer=own)
    trajectory = replace(quoting, pictures={"0" * 64: b"jpeg"})
    settings = SynthesizeSettings(recipe="geovista", observer="reader")

    def judged(text, shown=trajectory):
        reader = Reader(text)
        context = WorkerContext(settings, None, reader, None)
        return *asyncio.run(_judge(shown, RECIPES["geovista"], FRANCE, context)), reader.asked

    verdict, usage, asked = judged('"Rue Basse"')
    assert verdict.reasons == ("unseen_sign",) and verdict.evidence == ('unseen_sign: "Wiesbaden"',)
    assert usage.prompt_tokens == 5 and [role for role, _ in asked] == ["reader"]
    assert "Wiesbaden" not in str(asked) and "Paris" not in str(asked)  # neither the claim nor the truth
    assert judged('"Wiesbaden 5 km"')[0].kept
    assert judged("", replace(trajectory, messages=after("Nothing is quoted.", answer=own).messages))[2] == []
