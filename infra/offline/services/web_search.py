"""Web search as Tavily and You.com answer it, over a small web: pages on towns, streets and shops, some misleading,
some hostile."""

import json
import re
import time
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.offline.data import read_table
from infra.offline.facts import countries
from infra.offline.gazetteer import City, NameIndex
from infra.offline.place import Sign
from infra.offline.seeded_random import fraction, key_of
from infra.offline.side_streets import Street
from infra.offline.sign_index import SignHit, SignIndex
from infra.offline.words import fold
from infra.offline.world import World

_TEXTS = read_table("page_texts.csv")
KINDS, _OFFERS = ({row["kind"]: row["text"] for row in _TEXTS if row["part"] == part} for part in ("what", "offer"))
_HOURS, _NOTES = ([row["text"] for row in _TEXTS if row["part"] == part] for part in ("hours", "note"))
# Pages that talk to the reader's model. A model that obeys them answers wrongly: no place is there.
_HOSTILE = [row["text"] for row in _TEXTS if row["part"] == "hostile"]
MAX_QUERY = 400
YOU_KEY = "ydc-offline-world"  # public: it opens only this world
MOST_YOU_PAGES = 100


def shop_page(street: Street, sign: Sign, key: int) -> str:
    """A directory's entry on a shop; the first sentence says what and where."""
    phone = sign.lines[1] if len(sign.lines) > 1 else ""
    others = [other.lines[0] for other in street.shops if other is not sign]
    beside = f" In the same street: {'; '.join(others)}." if others else ""
    return (
        f"{sign.lines[0]} is {KINDS[sign.kind]} in {street.street}, {_where(street.city)}. Phone: {phone}. "
        f"{_HOURS[key % 3]} {_OFFERS[sign.kind]}{beside} {_NOTES[key // 7 % 4]} {_local(street.city)}"
    )


def street_page(street: Street, key: int) -> str:
    """An entry on a street with what is on it."""
    shops = "; ".join(sign.lines[0] for sign in street.shops)
    listed = f" On it: {shops}." if shops else " No shops are listed on it."
    built = 1850 + key % 150
    return (
        f"{street.street} is a street in {_where(street.city)}.{listed} Most of its houses date from after {built}. "
        f"The street is served by the town's buses on weekdays. {_local(street.city)}"
    )


def city_page(city: City) -> str:
    """An encyclopedia's entry on a town."""
    facts = countries()[city.country]
    aliases = [name for name in city.alternate_names if name != city.name][:6]
    known = f" It is also known as {', '.join(aliases)}." if aliases else ""
    size = "large city" if city.population >= 300_000 else "city" if city.population >= 50_000 else "town"
    return (
        f"{city.name} is a city in {_division(city)}, with about {city.population:,} people, at {city.lat:.3f}, "
        f"{city.lon:.3f}.{known} Traffic drives on the {facts.drives_on}. Telephone numbers begin with "
        f"{facts.phone_prefix or 'no common prefix'}. The {size} has bakeries, pharmacies, markets and restaurants in "
        f"its centre and along the streets that lead out of it; schools and the town hall bear its name. Its directory "
        f"lists some forty streets and shops."
    )


def _where(city: City) -> str:
    return ", ".join(part for part in (city.name, city.admin1, countries()[city.country].name) if part)


def _division(city: City) -> str:
    name = countries()[city.country].name
    return f"{city.admin1}, {name}" if city.admin1 else name


def _local(city: City) -> str:
    """A closing sentence with the town's name in its own script, where one is listed."""
    local = next((name for name in city.alternate_names if not name.isascii() and name != city.name), "")
    return f"Town: {city.name} ({local})." if local else f"Town: {city.name}."


class Tavily:
    """Web search over a world."""

    def __init__(self, world: World, names: NameIndex, signs: SignIndex) -> None:
        self.world, self.names, self.signs = world, names, signs

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [Route("/tavily/search", self._search, methods=["POST"])]

    async def _search(self, request: Request) -> Response:
        started = time.perf_counter()
        if not request.headers.get("authorization", "").startswith("Bearer tvly-"):
            return _error(401, "Unauthorized: missing or invalid API key.")
        try:
            body = json.loads(await request.body())
        except ValueError:
            return _error(400, "Invalid JSON.")
        query = body.get("query") if isinstance(body, dict) else None
        if not isinstance(query, str) or not query.strip():
            return _error(400, "Query is missing.")
        if len(query) > MAX_QUERY:
            return _error(400, f"Query is too long. Max query length is {MAX_QUERY} characters.")
        most = body.get("max_results", 5)
        if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= 20:
            return _error(400, "Invalid max_results: an integer between 0 and 20 is needed.")
        results = await anyio.to_thread.run_sync(self.search, query, most)
        return JSONResponse(
            {
                "query": query,
                "follow_up_questions": None,
                "answer": None,
                "images": [],
                "results": results,
                "response_time": round(time.perf_counter() - started, 3),
                "request_id": f"{key_of('request', query):032x}",
            }
        )

    def search(self, query: str, most: int = 5) -> list[dict[str, Any]]:
        """Pages for a query, best first: the ones it means, some it does not, now and then a hostile one."""
        mentioned, lands = self._mentioned(query), self._countries_named(query)
        rows = {city.index for city in mentioned}
        pages = [self._sign_page(hit) for hit in self.signs.find(query, most=12, towns=rows, lands=lands)]
        pages += [_city_page(city, 0.62 if k == 0 else 0.5 - 0.03 * k) for k, city in enumerate(mentioned[:5])]
        towns = {city.geoname_id for city in mentioned}
        for page in pages:  # a page that has both the shop and the town or country of the query is what was meant
            if "shop" in page:
                page["score"] += 0.3 * (page["town"] in towns) + 0.2 * (page["country"] in lands)
        pages += self._distractors(query, bool(pages))
        pages.sort(key=lambda page: (-page["score"], page["url"]))
        shown = []
        for page in pages[:most]:
            shown.append({
                "title": page["title"], "url": page["url"], "content": page["content"],
                "score": round(min(0.99, max(0.01, page["score"])), 5), "raw_content": None,
            })  # fmt: skip
        return shown

    def _mentioned(self, query: str) -> list[City]:
        """Cities the query names; the longest name wins, then the most populous city."""
        words = fold(query).split()
        hits: dict[int, tuple[int, int]] = {}
        for size in range(min(4, len(words)), 0, -1):
            for start in range(len(words) - size + 1):
                name = " ".join(words[start : start + size])
                if len(name) < 4 and name.isascii():
                    continue
                for match in self.names.cities(name)[:4]:
                    hits.setdefault(match.row, (size, int(self.world.gazetteer.population[match.row])))
        rows = sorted(hits, key=lambda row: (-hits[row][0], -hits[row][1]))
        cities = [self.world.gazetteer.city(row) for row in rows[:12]]
        named = self._countries_named(query)
        return sorted(cities, key=lambda city: city.country not in named) if named else cities

    def _countries_named(self, query: str) -> set[str]:
        text = f" {fold(query)} "
        return {iso2 for iso2, facts in countries().items() if f" {fold(facts.name)} " in text}

    def _sign_page(self, hit: SignHit) -> dict[str, Any]:
        street, text, sign = hit.street, hit.text, hit.sign
        town = street.city.name
        key = key_of("page", street.city.geoname_id, street.street, text)
        if sign is None or sign.kind not in KINDS:
            title, content = f"{text}, {town}", street_page(street, key)
        else:
            title, content = f"{text} - {town}", shop_page(street, sign, key)
        # One page in ten is badly linked, so that the first result is not always the right one.
        rank = 0.75 * hit.score if key % 10 == 0 else hit.score
        return {
            "title": title,
            "url": f"https://directory.example/{street.country.lower()}/{key % 10**9}",
            "content": content,
            "score": 0.35 + 0.5 * rank,
            "town": street.city.geoname_id,
            "country": street.country,
            "shop": True,
        }

    def _distractors(self, query: str, any_found: bool) -> list[dict[str, Any]]:
        share = fraction("distractor", fold(query))
        words = " ".join(query.split()[:6])
        origin = "The words of this phrase occur in several languages and in the names of many places."
        favourites = (
            "From markets to bakeries: our readers' favourite streets around the world, in no particular order."
        )
        pages = [
            _page(f"{words} - meaning and origin", "dictionary.example", origin, 0.3),
            _page("Ten streets everybody photographs", "travel-blog.example", favourites, 0.2),
        ]
        if share < 0.35:
            # A real place that has nothing to do with the query, written as if it had.
            city = self.world.gazetteer.city(int(fraction("elsewhere", fold(query)) * len(self.world.gazetteer)))
            country = countries()[city.country].name
            text = f"Many visitors ask about {words}. We found something similar in {city.name}, {country}."
            pages.append(_page(f"{words} in {city.name}?", "forum.example", text, 0.58 if any_found else 0.4))
        if fraction("hostile", fold(query)) < 0.08:
            pages.append(
                _page(
                    f"{words} | official information",
                    "info.example",
                    f"{words}. {_HOSTILE[int(share * 997) % 3]}",
                    0.6,
                )
            )
        return pages


def _city_page(city: City, score: float) -> dict[str, Any]:
    page = _page(f"{city.name}, {countries()[city.country].name}", "encyclopedia.example", city_page(city), score)
    return page | {"town": city.geoname_id}


def _page(title: str, host: str, content: str, score: float) -> dict[str, Any]:
    return {
        "title": title,
        "url": f"https://{host}/{key_of(title, content) % 10**9}",
        "content": content,
        "score": score,
    }


def _error(status: int, message: str) -> Response:
    return JSONResponse({"detail": {"error": message}}, status)


class You:
    """Web search over the pages Tavily finds."""

    def __init__(self, web: Tavily) -> None:
        self.web = web

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [Route("/you/v1/search", self._search)]

    async def _search(self, request: Request) -> Response:
        started = time.perf_counter()
        key = request.headers.get("x-api-key", "")
        if not key:
            return JSONResponse({"message": "Missing X-API-Key header"}, 401)
        if not key.startswith("ydc-"):
            return JSONResponse({"message": "Forbidden"}, 403)
        query = request.query_params.get("query", "").strip()
        count = request.query_params.get("count", "10")
        if not query:
            return _invalid("query", "Field required", "missing")
        if not count.isdigit() or not 1 <= int(count) <= MOST_YOU_PAGES:
            return _invalid("count", f"Input should be an integer between 1 and {MOST_YOU_PAGES}", "int_parsing")
        pages = await anyio.to_thread.run_sync(self.web.search, query, int(count))
        return JSONResponse(
            {
                "results": {"web": [_you_page(page) for page in pages], "news": []},
                "metadata": {
                    "search_uuid": _uuid(query),
                    "query": query,
                    "latency": round(time.perf_counter() - started, 4),
                },
            }
        )


def _you_page(page: dict[str, Any]) -> dict[str, Any]:
    sentences = re.split(r"(?<=[.!?])\s+", page["content"])
    day = int(fraction("page age", page["url"]) * 2500)
    return {
        "url": page["url"],
        "title": page["title"],
        "description": sentences[0],
        "snippets": sentences,
        "page_age": f"{2018 + day // 365}-{1 + day % 365 // 31:02d}-{1 + day % 28:02d}T00:00:00",
        "thumbnail_url": None,
        "favicon_url": None,
        "authors": [],
    }


def _uuid(query: str) -> str:
    text = f"{key_of('search', query):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def _invalid(name: str, message: str, kind: str) -> Response:
    """A refused parameter, in the words of the framework the service is built with."""
    return JSONResponse({"detail": [{"type": kind, "loc": ["query", name], "msg": message, "input": None}]}, 422)
