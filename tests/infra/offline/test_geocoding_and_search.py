"""Nominatim and Tavily over a real socket."""

import re
from difflib import SequenceMatcher

from infra.offline import sign_index
from infra.offline.gazetteer import NameIndex
from infra.offline.services.geocoding import Nominatim
from infra.offline.services.maps import PoiTable
from infra.offline.services.web_search import Tavily
from infra.offline.side_streets import map_point
from infra.offline.sign_index import SignIndex
from infra.offline.words import fold, telling_words

RESULT_KEYS = {
    "place_id",
    "licence",
    "osm_type",
    "osm_id",
    "lat",
    "lon",
    "category",
    "type",
    "place_rank",
    "importance",
    "addresstype",
    "name",
    "display_name",
    "address",
    "boundingbox",
}
PAIR = re.compile(r"(-?\d+\.\d{3,}), (-?\d+\.\d{3,})")
KEY = {"Authorization": "Bearer tvly-offline-world"}


def search(served, q, **more):
    return served.http.get(
        "/nominatim/search", params={"q": q, "format": "jsonv2", "addressdetails": "1", **more}
    ).json()


def test_result_has_the_fields_and_types_of_nominatim(served):
    row = search(served, "Lyon")[0]
    assert row.keys() == RESULT_KEYS
    assert isinstance(row["lat"], str) and isinstance(row["lon"], str)
    assert [type(edge) for edge in row["boundingbox"]] == [str] * 4
    south, north, west, east = map(float, row["boundingbox"])
    assert south < float(row["lat"]) < north and west < float(row["lon"]) < east
    assert row["address"] == {
        "city": "Lyon",
        "state": "Auvergne-Rhône-Alpes",
        "country": "France",
        "country_code": "fr",
    }
    assert "address" not in served.http.get("/nominatim/search", params={"q": "Lyon"}).json()[0]


def test_ambiguous_names_come_ranked(served):
    rows = search(served, "Athens", limit="4")
    assert len(rows) == 4
    assert rows[0]["address"]["country_code"] == "gr"
    assert [r["importance"] for r in rows] == sorted((r["importance"] for r in rows), reverse=True)
    assert search(served, "Athens, Georgia")[0]["address"]["country_code"] == "us"


def test_aliases_and_local_scripts(served):
    for text, name in (
        ("Αθήνα", "Athens"),
        ("東京", "Tokyo"),
        ("Köln", "Köln"),
        ("Cologne", "Köln"),
        ("Praha", "Prague"),
        ("Roma", "Rome"),
    ):
        assert search(served, text)[0]["name"] == name, text


def test_countries_states_postal_codes_and_nothing(served):
    assert search(served, "France")[0]["addresstype"] == "country"
    assert search(served, "Bavaria, Germany")[0]["addresstype"] == "state"
    assert search(served, "69001 Lyon, France")[0]["name"] == "Lyon"
    assert search(served, "Xyzzyville") == []


def test_streets_of_the_world_are_found_in_their_town(served):
    for index in range(0, 200, 20):
        place = served.world.place(index)
        rows = search(served, f"{place.street}, {place.city.name}")
        assert rows, place
        lat, lon = map_point(place)
        there = [r for r in rows if r["addresstype"] == "road" and abs(float(r["lat"]) - lat) < 1e-6]
        assert there and abs(float(there[0]["lon"]) - lon) < 1e-6


def test_a_streets_region_tells_it_from_its_namesakes_and_may_be_misread_by_a_letter(served):
    """Of all streets of a name those of the region are answered, and most are then alone."""
    right = alone = 0
    places = [place for place in map(served.world.place, range(0, served.world.size, 40)) if len(place.region) > 6]
    for place in places:
        found = search(served, f"{place.street}, {place.region}", limit="50")
        states = {row["address"].get("state", row["address"]["country"]) for row in found}
        assert states == {place.city.admin1 or place.facts.name}, place
        misread = f"{place.region[:3]}q{place.region[4:]}"
        assert search(served, f"{place.street}, {misread}", limit="50") == found, misread
        alone += len(search(served, place.street, limit="50")) == 1
        right += abs(float(found[0]["lat"]) - place.lat) + abs(float(found[0]["lon"]) - place.lon) < 0.2
    assert right > len(places) / 2 > alone


def test_no_entry_of_a_pictures_own_street_has_the_pictures_position(small_world):
    """All that geocoders and maps know of the street and its shops; three decimals are a hundred metres."""
    points = PoiTable(small_world, NameIndex(small_world.gazetteer), SignIndex(small_world))
    for place in (small_world.place(index) for index in range(small_world.size)):
        taken = {_rounded(record.lat, record.lon) for record in small_world.images(place.index)}
        entries = {_rounded(poi.lat, poi.lon) for poi in points.of_street(place)}
        assert not taken & {_rounded(*map_point(place)), *entries}, place


def test_what_tools_answer_of_a_pictures_signs_follows_from_no_picture(served):
    """Positions in answers are entries of streets and centres of towns: a picture's is among them by chance alone."""
    world, names = served.world, NameIndex(served.world.gazetteer)
    geocoder, points = Nominatim(world, names, served.signs), PoiTable(world, names, served.signs)
    for place in (world.place(index) for index in range(0, world.size, 120)):
        town, text = place.city.name, place.shops[0].lines[0]
        found = geocoder.search(f"{text}, {town}") + geocoder.search(f"{place.street}, {town}")
        found += [row for zoom in (18, 10) if (row := geocoder.reverse(place.lat, place.lon, zoom))]
        told = {_rounded(float(row["lat"]), float(row["lon"])) for row in found}
        told |= {_rounded(poi.lat, poi.lon) for poi in points.search(text, town)}
        pages = " ".join(page["content"] for page in Tavily(world, names, served.signs).search(f"{text} {town}", 20))
        told |= {_rounded(float(lat), float(lon)) for lat, lon in PAIR.findall(pages)}
        others = {_rounded(poi.lat, poi.lon) for row in names.cities(town) for poi in _entries(points, row.row)}
        mine = {_rounded(record.lat, record.lon) for record in world.images(place.index)}
        assert told and not mine & told - others, place


def _entries(points, row):
    """Of a town: its centre and its streets without imagery."""
    city = points.world.gazetteer.city(row)
    return [city, *(poi for street in points.world.side_streets.of_town(row) for poi in points.of_street(street))]


def test_the_list_of_a_large_worlds_signs_is_kept_for_the_next_server(small_world, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sign_index, "LARGE", 100)
    text = small_world.place(3).shops[0].lines[0]
    made = [hit.text for hit in SignIndex(small_world).find(text)]
    [file] = (tmp_path / "geofix/offline").iterdir()
    written = file.stat().st_mtime_ns
    assert made and [hit.text for hit in SignIndex(small_world).find(text)] == made
    assert file.stat().st_mtime_ns == written
    file.write_bytes(file.read_bytes()[:1000])  # cut off
    assert [hit.text for hit in SignIndex(small_world).find(text)] == made
    assert file.stat().st_size > 1000


def _rounded(lat, lon):
    return f"{lat:.3f}", f"{lon:.3f}"


def test_reverse_names_the_nearest_town_and_the_sea_nothing(served):
    def reverse(lat, lon):
        return served.http.get("/nominatim/reverse", params={"lat": lat, "lon": lon, "format": "jsonv2"}).json()

    assert reverse(45.75, 4.85)["address"]["country_code"] == "fr"
    assert reverse(45.75, 4.85).keys() == RESULT_KEYS
    assert reverse(0, -30) == {"error": "Unable to geocode"}


def tavily(served, query, **more):
    return served.http.post("/tavily/search", json={"query": query, **more}, headers=KEY)


def test_search_answers_in_the_shape_of_tavily(served):
    body = tavily(served, "Lyon").json()
    assert body.keys() == {"query", "follow_up_questions", "answer", "images", "results", "response_time", "request_id"}
    assert body["results"] and all(
        r.keys() == {"title", "url", "content", "score", "raw_content"} for r in body["results"]
    )
    assert [r["score"] for r in body["results"]] == sorted((r["score"] for r in body["results"]), reverse=True)
    assert len(tavily(served, "Lyon", max_results=2).json()["results"]) == 2


def test_search_refuses_what_tavily_refuses(served):
    assert served.http.post("/tavily/search", json={"query": "x"}).status_code == 401
    assert tavily(served, " ").status_code == 400
    assert tavily(served, "x" * 401).json() == {
        "detail": {"error": "Query is too long. Max query length is 400 characters."}
    }
    assert tavily(served, "x", max_results=21).status_code == 400


def test_two_names_of_a_street_lead_to_its_town(served):
    alone = both = 0
    for index in range(0, 300, 10):
        place = served.world.place(index)
        named = [sign.lines[0] for sign in place.shops if fold(place.local_name) not in fold(sign.lines[0])]
        shop = (named or [place.shops[0].lines[0]])[0]
        for query in (shop, f"{shop} {place.street}"):
            pages = tavily(served, query).json()["results"]
            hit = any(fold(place.city.name) in fold(page["content"]) for page in pages)
            alone, both = alone + (hit and query == shop), both + (hit and query != shop)
    assert both >= 25 and alone < both  # of 30: a name alone is shared by streets of many towns


def test_one_misread_letter_is_forgiven(served):
    place = next(p for p in map(served.world.place, range(100)) if p.language in ("fr", "de", "es", "pt-BR", "en"))
    word, name = place.shops[0].lines[0].rsplit(" ", 1)
    pages = tavily(served, f"{word} {name[:-1]}x", max_results=20).json()["results"]
    assert any(place.city.name in page["content"] for page in pages) or place.language == "en"


def test_some_pages_mislead_and_some_are_hostile(served):
    texts = [
        r["content"] for i in range(60) for r in tavily(served, f"bakery number {i}", max_results=10).json()["results"]
    ]
    assert any("Ignore all previous instructions" in text or "SYSTEM:" in text for text in texts)
    assert any("something similar in" in text for text in texts)


def test_a_page_found_for_a_misspelt_name_holds_that_name(served):
    """The page of another shop, or of the street, would lead to the true town without any reason in its text."""
    checked = 0
    for index in range(0, 200, 5):
        place = served.world.place(index)
        word = place.street.split()[-1] if len(place.street.split()) > 1 else place.street
        if not word.isascii() or len(word) < 7:
            continue
        for hit in served.signs.find(f"{word[:3]}q{word[4:]}", most=5):
            checked += 1
            (asked,) = telling_words(word)
            assert any(SequenceMatcher(None, asked, own).ratio() > 0.75 for own in telling_words(hit.text)), hit.text
    assert checked > 5


def test_pages_are_as_long_as_pages_are(served):
    texts = [page["content"] for i in range(0, 60, 6)
             for page in tavily(served, served.world.place(i).street, max_results=3).json()["results"]]  # fmt: skip
    assert sum(map(len, texts)) / len(texts) > 250
