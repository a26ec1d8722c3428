import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.reward.answer import Address, ParsedAnswer, ParseFailure, _read, _read_closely, parse_answer, parse_point

PARIS = '{"lat": 48.85, "lon": 2.35, "city": "Paris", "country": "France"}'


def point(text: str) -> tuple[float | None, float | None]:
    answer = parse_answer(text)
    assert isinstance(answer, ParsedAnswer), answer
    return answer.lat, answer.lon


@pytest.mark.parametrize(
    "text",
    [
        PARIS,
        f"<answer>{PARIS}</answer>",
        f"<think>Perhaps {{a}}.</think>\n<answer>\n```json\n{PARIS}\n```\n</answer>",
        f"I think so.\n```json\n{PARIS}\n```",
        f"First guess {PARIS.replace('48.85', '10')}. No: {PARIS}",
        f"<answer>1, 2</answer> wait <answer>{PARIS}</answer>",
        f"<ANSWER>{PARIS}</ANSWER >",
        f"<answer>{PARIS}",  # the closing tag was a stop string
        '<answer>{"latitude": 48.85, "longitude": 2.35}</answer>',
        '<answer>{"Latitude": "48.85", "Lng": "2.35"}</answer>',
        '<answer>{"lat": 48.85, "lon": 2.35, "city": Paris, "country": France}</answer>',
        "<answer>{'lat': 48.85, 'lon': 2.35, 'city': 'L\\'Hay',}</answer>",
        '<answer>{"lat": 48.85, "lon": 2.35,}</answer>',
        '<answer>{"location": {"lat": 48.85, "lng": 2.35}, "city": "Paris"}</answer>',
        "<answer>{lat: 48.85, lon: 2.35}</answer>",
        '<answer>{"lat": "48.85° N", "lon": "2.35° E"}</answer>',
        '<answer>{"lat": "48,85", "lon": "2,35"}</answer>',
        '<answer>{"reason": "not lat: 5, lon: 6", "lat": 48.85, "lon": 2.35}</answer>',
        "<answer>48.85, 2.35</answer>",
        "<answer>(48.85, 2.35)</answer>",
        "<answer>Paris, France (48.85, 2.35)</answer>",
        "<answer>48.85 N, 2.35 E</answer>",
        "<answer>2.35° E, 48.85° N</answer>",
        "<answer>48°51'0\"N 2°21'0\"E</answer>",
        "<answer>48°51′00″N, 2°21′00″E</answer>",
        "<answer>The place is at latitude 48.85 and longitude 2.35.</answer>",
        "<answer>Latitude (decimal): 48.85\nLongitude (decimal): 2.35\n</answer>",
        "<answer>**Latitude:** 48.85\n**Longitude:** 2.35</answer>",
        "<answer>４８.８５，２.３５</answer>",
        "48.85, 2.35",
        "Latitude: 48.85\nLongitude: 2.35",
    ],
)
def test_every_way_to_say_paris(text: str) -> None:
    assert point(text) == pytest.approx((48.85, 2.35))


def test_answers_printed_in_the_papers() -> None:
    step = "<answer>\nCountry: China\nCity: Beijing\nLatitude: 39.9067\nLongitude: 116.4032\n</answer>"
    answer = parse_answer(step)  # SpotAgent A.3
    assert answer == ParsedAnswer(39.9067, 116.4032, Address("China", None, "Beijing"), answer.text)
    line = "<answer>country: United States, city: Anaheim, Latitude: 33.8111, Longitude: -117.9220 **</answer>**"
    answer = parse_answer(line)  # SpotAgent fig. 9
    assert answer == ParsedAnswer(33.8111, -117.922, Address("United States", None, "Anaheim"), answer.text)
    answer = parse_answer("<answer> United States; PR; Río Piedras </answer>")  # GeoAgent fig. 10
    assert answer == ParsedAnswer(None, None, Address("United States", "PR", "Río Piedras"), answer.text)
    answer = parse_answer("<answer> Zambia; Lusaka Province; </answer>")
    assert answer == ParsedAnswer(None, None, Address("Zambia", "Lusaka Province", None), answer.text)
    final = {
        "ChainOfThought": {"RegionalGuess": {"Clues": [], "Conclusion": "Tibet"}},
        "FinalAnswer": "China; Tibet; S515",
    }
    assert parse_answer(f"```json {json.dumps(final)} ```").address == Address("China", "Tibet", "S515")
    prose = parse_answer("<answer>The original image depicts Hong Kong, China. Key evidence: ...</answer>")  # GeoVista
    assert isinstance(prose, ParseFailure) and "Hong Kong" in prose.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (None, "empty"),
        ("<answer>  </answer>", "empty"),
        ("I cannot tell.", "no_answer"),
        ("<answer>unknown</answer>", "no_coordinates"),
        ('<answer>{"lat": null, "lon": 2}</answer>', "missing_lat"),
        ('<answer>{"lat": 1}</answer>', "missing_lon"),
        ('<answer>{"lat": , "lon": 2}</answer>', "missing_lat"),
        ('<answer>{"city": "Paris", "country": "France"}</answer>', "missing_coordinates"),
        ('<answer>{"lat": NaN, "lon": 2}</answer>', "not_finite"),
        ('<answer>{"lat": 1, "lon": -Infinity}</answer>', "not_finite"),
        ('<answer>{"lat": 1e999, "lon": 2}</answer>', "not_finite"),
        ('<answer>{"lat": "north", "lon": 2}</answer>', "not_a_number"),
        ('<answer>{"lat": true, "lon": 2}</answer>', "not_a_number"),
        ('<answer>{"lat": [1], "lon": 2}</answer>', "not_a_number"),
        ("<answer>90.0001, 0.5</answer>", "lat_out_of_range"),
        ("<answer>116.4, 39.9</answer>", "lat_out_of_range"),
        ("<answer>39.9, 216.4</answer>", "lon_out_of_range"),
        ("<answer>-33.9 S, 18.4 E</answer>", "conflicting_hemisphere"),
        ('<answer>{"lat": "18.4 E", "lon": 2}</answer>', "conflicting_hemisphere"),
        ("<answer>48°61'N 2°E</answer>", "not_a_number"),
        ("<answer>Either 1.5, 2.5 or 3.5, 4.5</answer>", "ambiguous"),
        ('<answer>{"lat": 1, "lon": 2} {"lat": 1, "lon": 3}</answer>', "ambiguous"),
        ("<answer>Latitude: 1 Longitude: 2 Latitude: 3</answer>", "ambiguous"),
        ("<answer>Latitude: 39.9\nLongitude: 116.4", "truncated"),
        ("<answer>Take road 5, 20 km north</answer>", "no_coordinates"),
        ("<answer>12 Main Street, 1994</answer>", "no_coordinates"),
        ("The road has 2 lanes, lat. 5", "no_answer"),
        ('<tool_call>{"name": "map", "arguments": {"lat": 1, "lon": 2}}</tool_call>', "no_answer"),
        ('Let me look. <tool_call>{"name": "map", "arguments": {"lat": 1, "lon": 2}}', "no_answer"),
        ('<tool_response>{"lat": 1, "lon": 2}</tool_response>', "no_answer"),
        ('<think>Maybe {"lat": 1, "lon": 2}?</think>I do not know.', "no_answer"),
    ],
)
def test_what_is_no_answer_says_why(text: str | None, reason: str) -> None:
    answer = parse_answer(text)
    assert isinstance(answer, ParseFailure)
    assert answer.reason == reason


def test_names_survive_a_missing_coordinate_and_loose_json() -> None:
    answer = parse_answer('{"lat": null, "lon": 2, "city": "Paris", "country": "France"}')
    assert answer.address == Address("France", None, "Paris")
    loose = '{"lat": 38.9, "lon": -77.0, "city": Washington, D.C., "country": "USA", "confidence": 0.9}'
    assert parse_answer(loose).address == Address("USA", None, "Washington, D.C.")
    assert parse_answer('{"lat": 1, "lon": 2, "city": "S\\u00e3o Paulo",}').address.city == "São Paulo"


def test_an_address_alone_is_no_point() -> None:
    answer = parse_point("<answer>France; Île-de-France; Paris</answer>")
    assert isinstance(answer, ParseFailure)
    assert answer.reason == "no_coordinates"
    assert answer.address.city == "Paris"


# Minutes and seconds under a label, without a compass letter: (latitude, longitude) of one place, to 0.01 seconds.
IN_SIXTIETHS = [
    ("48 51 30.24", "2 17 40.2"),
    ("48 51 30,24", "2 17 40,2"),
    ("48°51'30.24\"", "2°17'40.2\""),
    ("48° 51′ 30.24″", "2° 17′ 40.2″"),
    ("48°51'30.24", "2°17'40.2"),
    ("48° 51' 30,24\"", "2° 17' 40,2\""),
    ("48º51´30.24´´", "2º17´40.2´´"),
    ("48:51:30.24", "2:17:40.2"),
    ("48-51-30.24", "2-17-40.2"),
    ("48d51m30.24s", "2d17m40.2s"),
    ("48d 51m 30.24s", "2d 17m 40.2s"),
    ("48 degrees 51 minutes 30.24 seconds", "2 degrees 17 minutes 40.2 seconds"),
    ("48 degrees, 51 minutes and 30.24 seconds", "2 degrees, 17 minutes and 40.2 seconds"),
    ("48° 51.504'", "2° 17.67'"),
    ("48° 51.504", "2° 17.67"),
    ("48 51.504", "2 17.67"),
    ("48 51 30.24 N", "2 17 40.2 E"),
    ("48 51.504 north", "2 17.67 east"),
    ("+48° 51' 30.24\"", "+2° 17' 40.2\""),
]
LABELLED = [
    "Latitude: {}\nLongitude: {}",
    "Lat: {}; Lon: {}",
    "latitude {}, longitude {}",
    "| Latitude | {} |\n| Longitude | {} |",
]


@pytest.mark.parametrize(("lat", "lon"), IN_SIXTIETHS)
def test_labelled_minutes_and_seconds_are_read_in_text_answer_and_json(lat: str, lon: str) -> None:
    for form in LABELLED:
        body = form.format(lat, lon)
        for text in (body, f"<answer>{body}</answer>", f"The signs are French.\n{body}"):
            assert point(text) == pytest.approx((48.8584, 2.2945), abs=1e-9), text
    for names in (("lat", "lon"), ("Latitude", "Longitude")):
        body = json.dumps(dict(zip(names, (lat, lon), strict=True)))
        for text in (body, f"<answer>{body}</answer>", f"```json\n{body}\n```", body.replace("}", ",}")):
            assert point(text) == pytest.approx((48.8584, 2.2945), abs=1e-9), text


@given(st.tuples(st.booleans(), st.booleans()), *[st.integers(0, 59)] * 4, st.integers(0, 89), st.integers(0, 179))
def test_any_labelled_minutes_and_seconds_are_read_with_the_sign_of_the_degrees(
    south_west: tuple[bool, bool], m1: int, s1: int, m2: int, s2: int, d1: int, d2: int
) -> None:
    size = d1 + m1 / 60 + s1 / 3600, d2 + m2 / 60 + s2 / 3600
    signs = ["-" if one else "" for one in south_west]
    meant = tuple(-value if sign else value for sign, value in zip(signs, size, strict=True))
    for form in ("{}{} {} {}", "{}{}°{}'{}\"", "{}{}:{}:{}"):
        lat, lon = form.format(signs[0], d1, m1, s1), form.format(signs[1], d2, m2, s2)
        for text in (f"Latitude: {lat}\nLongitude: {lon}", json.dumps({"lat": lat, "lon": lon})):
            assert point(text) == pytest.approx(meant, abs=1e-9), text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Latitude: 48°51'\nLongitude: 2°17'", (48.85, 2.283333333)),
        ("Coordinates: 48 51 30.24, 2 17 40.2", (48.8584, 2.2945)),
        ("<answer>-33 51.408, 151 12.918</answer>", (-33.8568, 151.2153)),
        ("N 48.8584\nE 2.2945", (48.8584, 2.2945)),
        ("It is here: N 48.8584 E 2.2945", (48.8584, 2.2945)),
        ("N: 48.8584\nE: 2.2945", (48.8584, 2.2945)),
        ("S 33° 51.408 E 151° 12.918", (-33.8568, 151.2153)),
        ("33.8568 degrees South latitude, 151.2153 degrees East longitude", (-33.8568, 151.2153)),
        ("33.8568 degrees of south latitude and 151.2153 degrees of east longitude", (-33.8568, 151.2153)),
        (
            "33 degrees 51.408 minutes South latitude and 151 degrees 12.918 minutes East longitude",
            (-33.8568, 151.2153),
        ),
        ("South latitude: 33.8568, east longitude: 151.2153", (-33.8568, 151.2153)),
        ("Latitude (South): 33.8568\nLongitude (East): 151.2153", (-33.8568, 151.2153)),
        ("Latitude (S): -33.8568\nLongitude (E): 151.2153", (-33.8568, 151.2153)),
        ("خط العرض: 48.8584\nخط الطول: 2.2945", (48.8584, 2.2945)),
        ("خط العرض ٣٣٫٨٥٦٨ جنوباً، خط الطول ١٥١٫٢١٥٣ شرقاً", (-33.8568, 151.2153)),
        ("अक्षांश: 48.8584, देशांतर: 2.2945", (48.8584, 2.2945)),
        ("अक्षांश: ३३.८५६८° दक्षिण, देशांतर: १५१.२१५३° पूर्व", (-33.8568, 151.2153)),
        ("ละติจูด: 48.8584\nลองจิจูด: 2.2945", (48.8584, 2.2945)),
        ("ละติจูด ๓๓.๘๕๖๘ ใต้ ลองจิจูด ๑๕๑.๒๑๕๓ ตะวันออก", (-33.8568, 151.2153)),
        ("Γεωγραφικό πλάτος: 48,8584\nΓεωγραφικό μήκος: 2,2945", (48.8584, 2.2945)),
        ("33,8568° Ν, 151,2153° Α", (-33.8568, 151.2153)),  # Νότια is south
    ],
)
def test_compass_words_and_labels_of_other_languages(text: str, place: tuple[float, float]) -> None:
    for form in (text, f"<answer>{text}</answer>", f"I see a tower.\n{text}"):
        assert point(form) == pytest.approx(place, abs=1e-8), form


@pytest.mark.parametrize(
    ("lat", "lon"),
    [
        ("خط العرض", "خط الطول"),
        ("अक्षांश", "देशांतर"),
        ("ละติจูด", "ลองจิจูด"),
        ("Γεωγραφικό πλάτος", "Γεωγραφικό μήκος"),
        ("纬度", "经度"),
        ("위도", "경도"),
        ("Широта", "Долгота"),
    ],
)
def test_json_keys_of_other_languages(lat: str, lon: str) -> None:
    for text in (
        json.dumps({lat: 48.8584, lon: "2.2945° E"}, ensure_ascii=False),
        f"{{'{lat}': 48.8584, '{lon}': 2.2945,}}",
    ):
        assert point(text) == point(f"<answer>{text}</answer>") == (48.8584, 2.2945)


@pytest.mark.parametrize("value", ["48, 51, 30", "48 75 10", "48 51 30 20", "48,51,30"])
def test_what_follows_whole_degrees_and_cannot_be_minutes_is_no_point(value: str) -> None:
    for text in (f"Latitude: {value}\nLongitude: 2", json.dumps({"lat": value, "lon": 2})):
        assert isinstance(parse_answer(text), ParseFailure), text


@given(st.floats(-90, 90), st.floats(-180, 180), st.text(max_size=40), st.text(max_size=40))
def test_written_json_is_read_back_exactly(lat: float, lon: float, city: str, country: str) -> None:
    text = json.dumps({"lat": lat, "lon": lon, "city": city, "country": country})
    assert point(f"<answer>{text}</answer>") == (lat, lon)


@given(st.text(max_size=300))
@settings(max_examples=300)
def test_any_text_is_answered(text: str) -> None:
    for form in (text, f"<answer>{text}</answer>", f'<answer>{{"lat": {text}, "lon": 1}}</answer>'):
        assert_sound(parse_answer(form))


PIECES = [
    *"{}[]()\"':;,.<>/-+ \n\t\\=°′″*`|NSEW0123456789",
    *("<answer>", "</answer>", "<think>", "</think>", "```json", "```", '"lat":', '"lon":', "latitude", "Longitude: "),
    *(
        "lat",
        "lng=",
        "city:",
        '"country": ',
        "48.85",
        "-117.92",
        "1e999",
        "NaN",
        "Infinity",
        "null",
        "true",
        "France; ",
    ),
    *('{"lat": 1, "lon": 2}', "北京", "é", "\u0301", "\ud800", "\x00", "😀", "\u202e", "９", "N 5° 3'", "FinalAnswer"),
]


def test_fuzzed_strings() -> None:
    rng = random.Random(20)
    for _ in range(5_000):
        assert_sound(parse_answer("".join(rng.choices(PIECES, k=rng.randrange(16)))))


UNITS = [
    *("{", "{}", '{"lat":', '"', "9", "<answer>", "1.5, ", '{"lat":1,"lon":2}', "lat: ", '"a":', " ", ";", "<", "-"),
    *("1°1'", "\u0301\u0316", "(", "*", "N ", "latitude ", '{"a":{', "'lat'='", "e5", "<answer ", "\n", "city: ", "\\"),
]


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear_in_the_text(unit: str) -> None:
    # A quadratic step takes minutes here, a linear one a fraction of a second.
    body = unit * (200_000 // len(unit))
    start = time.perf_counter()
    for text in (body, f"<answer>{body}</answer>", "{" * 1000 + body + "}" * 1000):
        assert_sound(parse_answer(text))
    assert time.perf_counter() - start < 10


def assert_sound(answer: ParsedAnswer | ParseFailure) -> None:
    if isinstance(answer, ParseFailure):
        assert answer.reason
    elif answer.has_point:
        assert answer.lat is not None and answer.lon is not None
        assert -90 <= answer.lat <= 90 and -180 <= answer.lon <= 180
    else:
        assert answer.lat is None and answer.lon is None and answer.address


@given(
    st.tuples(st.floats(-95, 95), st.floats(-190, 190)),
    st.integers(1, 12),
    st.sampled_from(["{}, {}", "{},{}", " {}, {}\n", "Latitude: {}\nLongitude: {}", "\nlatitude: {}, longitude: {}\n"]),
    st.booleans(),
)
def test_plain_answers_are_read_as_the_careful_reader_reads_them(
    place: tuple[float, float], decimals: int, form: str, tagged: bool
) -> None:
    body = form.format(*(f"{degrees:.{decimals}f}" for degrees in place))
    assert _read(body, tagged) == _read_closely(body, tagged)


def test_a_flood_of_numbers_or_labels_names_no_place_and_a_final_answer_after_it_does() -> None:
    flood = "\n".join(f"sample {n}: {n / 7:.2f}, {n / 3:.2f}" for n in range(220))
    assert len(flood) < 6000 and not isinstance(parse_answer(flood), ParsedAnswer)
    assert point(f"{flood}\nFinal answer: 48.85, 2.35") == (48.85, 2.35)
    for unit in ("+1", "1 ", "纬度", "2<", "lat: 1, lon: 2, lat: 3 "):
        assert not isinstance(parse_answer(unit * (4000 // len(unit))), ParsedAnswer)
