"""Loopback servers in the place of each vendor: the offline world's answers behind a vendor's own door.

Each vendor has a port and a key of its own. A request without its key, or with that of another vendor anywhere in it,
is refused and noted. Models go by the names vendors give them; those that reason refuse what OpenAI's refuse.
Beside them: a model hub's cache with the recipes' models (their architectures, small, random weights), and stand-ins
for the published sets with their files' names and columns.
"""

import contextlib
import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.responses import JSONResponse

from infra.offline.facts import countries
from infra.offline.server import Application, create_app, serving
from infra.offline.services.image_host import ImageHost
from infra.offline.services.maps import KEY as MAPS_KEY
from infra.offline.world import ImageRecord, World
from schemas.settings.services import OFFLINE_CHAT_KEY, OFFLINE_PLACES_KEY, OFFLINE_SEARCH_KEY
from schemas.settings.train import TinySettings
from tasks.curate.verdict import SYSTEM as JUDGE
from tasks.recipes.recipe import RECIPES
from tasks.recipes.spotagent import OBSERVER
from tasks.reward.prose import fold_text
from tasks.reward.services import VERIFIER

TINY = TinySettings(vocabulary=2048)
REVISION = "0" * 40
SHARD = "400KB"
# Qwen2.5-VL's own knows no tools, unlike the one that geofix trains with.
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def fill_cache(home: Path) -> dict[str, int]:
    """Model name -> files of weights, after they were written as `hf download` would have."""
    from tasks.train.tiny import build_model, build_processor

    texts = [text for one in RECIPES.values() for text in (one.prompt.system, one.prompt.question)]
    texts += [country.name for country in countries().values()]
    for name, family in (
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3_vl_moe"),
    ):
        folder = _snapshot(home, name)
        tiny = TINY.model_copy(update={"family": family})
        processor: Any = build_processor(texts, tiny, 3136, 12_845_056)
        processor.chat_template = TEMPLATE
        processor.save_pretrained(folder)
        build_model(processor, tiny, seed=0).bfloat16().save_pretrained(folder, max_shard_size=SHARD)
    _encoder(_snapshot(home, "stabilityai/sd-vae-ft-mse"))
    hub = home / "hub"
    return {one.name: len(list(one.rglob("*.safetensors"))) for one in sorted(hub.iterdir())}


def _snapshot(home: Path, name: str) -> Path:
    model = home / "hub" / f"models--{name.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION)
    (model / "blobs").mkdir()
    folder = model / "snapshots" / REVISION
    folder.mkdir(parents=True)
    return folder


def _encoder(folder: Path) -> None:
    from safetensors.torch import save_file

    from tasks.recipes.smilegeo.encoder import CONFIG, WEIGHTS, EncoderSize, PictureEncoder

    size = EncoderSize()
    save_file(PictureEncoder(size).state_dict(), folder / WEIGHTS)
    sizes = {"block_out_channels": size.block_out_channels, "layers_per_block": 1, "norm_num_groups": 4}
    (folder / CONFIG).write_text(json.dumps({**sizes, "latent_channels": 4, "scaling_factor": 0.18215}))


def write_downloads(folder: Path, world_size: int) -> None:
    """Every table and picture that docs/reproduce.md names, below a folder."""
    host = ImageHost(World(size=world_size))
    photos = _photos(host.world)

    def write(below: str, table: str, columns: str, count: int, file: str, images: str = "images") -> None:
        """A table of so many rows, whose pictures are named by a column, in the folder of images."""
        (folder / below / images).mkdir(parents=True, exist_ok=True)
        with (folder / below / table).open("w", newline="") as out:
            writer = csv.DictWriter(out, columns.split(), extrasaction="ignore")
            writer.writeheader()
            for number, record in enumerate(itertools.islice(photos, count)):
                row = _row(host.world, record, number)
                writer.writerow(row)
                name = str(row[file]).removesuffix(".jpg") + ".jpg"
                (folder / below / images / name).write_bytes(host.jpeg(record, "original"))

    write("mp16-pro", "MP16_Pro_filtered.csv", "IMG_ID AUTHOR LAT LON city county state country", 40, "IMG_ID")
    for name in ("im2gps3k", "yfcc4k"):
        write(name, f"{name}_places365.csv", "IMG_ID AUTHOR LAT LON S3_Label S16_Label S365_Label", 3, "IMG_ID")
    street = "id latitude longitude country creator_username quadtree_10_1000 unique_city"
    write("osv5m", "train.csv", street, 10, "id", "images/train")
    write("osv5m", "test.csv", street, 4, "id", "images/test")
    write("geocomp", "tuxun_combined.csv", "panoID nation lat lng", 5, "panoID")
    write("mapbench", "pois.csv", "id path lat lng poi city licence creator", 16, "path")
    write("imageo-2", "dataset2.csv", "image_id gmap_id address latitude longitude", 6, "image_id")
    for below, table, count in (("geovista-bench", "geobench.csv", 3), ("geoglobe", "geoglobe.csv", 12)):
        write(below, table, "id path lat lng kind licence creator", count, "path")


def _photos(world: World) -> Iterator[ImageRecord]:
    """Clear photos of places far apart."""
    for index in range(0, world.size, 97):
        photo = next((one for one in world.images(index) if not one.is_pano and one.condition == "clear"), None)
        if photo:
            yield photo


def _row(world: World, record: ImageRecord, number: int) -> dict[str, Any]:
    """What the sets say of a photo, under all their columns' names."""
    place, name = world.place(record.place), record.image_id
    return {
        **dict.fromkeys(("id", "panoID", "image_id", "gmap_id", "poi", "quadtree_10_1000"), name),
        **{"IMG_ID": f"{name[:2]}_{name[2:4]}_{name}.jpg", "path": f"{name}.jpg"},
        **dict.fromkeys(("LAT", "lat", "latitude"), f"{record.lat:.6f}"),
        **dict.fromkeys(("LON", "lng", "longitude"), f"{record.lon:.6f}"),
        **dict.fromkeys(("AUTHOR", "creator", "creator_username"), record.creator),
        **dict.fromkeys(("unique_city", "address"), place.local_name),
        **{"city": f"city {number % 3}", "country": place.country, "nation": place.country},
        **{"licence": "CC BY 4.0", "kind": "photo", "S3_Label": 1, "S16_Label": 3, "S365_Label": 7},
    }


# Made up, in the shapes that vendors demand.
KEYS = {
    "MAPILLARY_TOKEN": "MLY|2600000000000026|5ea15ea15ea15ea15ea15ea15ea15ea1",
    "OPENAI_API_KEY": "sk-proj-rehearsal-Kq7vXw2mZr9TbN4y",
    "ANTHROPIC_API_KEY": "sk-ant-rehearsal-Jf3uQe8sLd6HcV1o",
    "GEMINI_API_KEY": "AIzaRehearsalGemini5pRtYwE0aSgKx",
    "GOOGLE_MAPS_KEY": "AIzaRehearsalMaps8bNmQzXcVfUjHt2",
    "AMAP_KEY": "rehearsal4amap9c1d7e3f5a8b2c6d0e4f",
    "TAVILY_API_KEY": "tvly-rehearsal-Wd5kPs0yGh7RnC2l",
}
OWN_SERVERS = ("policy", "large", "llava", "embeddings")  # want no key
REASONING = ("gpt-5", "o3")
ANSWERERS = {"llava": "answerer-small", "gpt-4o-mini": "answerer-base", "Qwen/Qwen2.5": "answerer-base"}


@dataclass
class Vendor:
    """One vendor's door to the world."""

    name: str
    paths: tuple[str, ...]  # that it answers
    key_name: str | None = None
    opens: str = ""  # the offline world's key behind it
    open_paths: tuple[str, ...] = ("/mapillary-cdn",)  # signed addresses, without a key
    models: tuple[str, ...] = ()
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    world: Application | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert self.world is not None
        if scope["type"] != "http":
            await self.world(scope, receive, send)
            return
        body = await _body(receive)
        reply = self._refusal(scope, body)
        if reply is None and self.models and scope["path"].startswith(self.paths):
            reply, body = self._model_reply(scope, body)
        if reply is not None:
            await reply(scope, receive, send)
            return
        self.answered[scope["path"].split("/")[1]] += 1
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        scope = scope | {"headers": [*headers, (b"content-length", str(len(body)).encode())]}
        if self.key_name and self.opens:
            scope = _with_key(scope, KEYS[self.key_name], self.opens)
        if self.models and not self.key_name:
            scope["headers"].append((b"authorization", f"Bearer {OFFLINE_CHAT_KEY}".encode()))
        await self.world(scope, _Sent(body, receive).receive, send)

    def _refusal(self, scope: Any, body: bytes) -> JSONResponse | None:
        """What is wrong with the keys of a request, or its address."""
        outside = unquote(scope["query_string"].decode()) + " ".join(v.decode("latin-1") for _, v in scope["headers"])
        everything = outside + unquote(body.decode("utf-8", "replace"))
        strangers = [name for name, key in KEYS.items() if name != self.key_name and key in everything]
        wants_key = self.key_name and not scope["path"].startswith(self.open_paths)
        if strangers:
            return self._refuse(403, f"carries {' and '.join(strangers)}")
        if not scope["path"].startswith(self.paths):
            return self._refuse(404, f"{scope['path']} is not here")
        if wants_key and KEYS[str(self.key_name)] not in outside:
            return self._refuse(401, f"no {self.key_name}")
        return None

    def _refuse(self, status: int, why: str) -> JSONResponse:
        self.refused[why] += 1
        return JSONResponse({"error": {"message": why, "type": "invalid_request_error"}}, status)

    def _model_reply(self, scope: Any, body: bytes) -> tuple[JSONResponse | None, bytes]:
        """A reply of its own, or the request as the offline world's model is asked."""
        if scope["path"].endswith("/models"):
            return JSONResponse(
                {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
            ), b""
        if scope["method"] != "POST":
            return None, body
        request = json.loads(body)
        model = request.get("model")
        if model not in self.models:
            return self._refuse(404, f"no model {model}"), b""
        if model in REASONING and (wrong := {"temperature", "seed", "max_tokens"} & request.keys()):
            return self._refuse(400, f"{model}: unsupported parameter {', '.join(sorted(wrong))}"), b""
        self.answered[model] += 1
        system = "".join(m["content"] for m in request.get("messages", ()) if m["role"] == "system")
        if system.startswith(VERIFIER):
            return JSONResponse(_level_verdict(request)), b""
        return None, json.dumps(request | {"model": _offline_model(model, system, request)}).encode()


def _offline_model(model: str, system: str, request: dict[str, Any]) -> str:
    """Which of the offline world's models speaks for a vendor's; some do several things, told apart by their words."""
    if "messages" not in request:
        return "embedder"
    sees = '"image_url"' in json.dumps(request["messages"])
    if system.startswith(JUDGE[:60]):
        return "judge"
    if system == OBSERVER:
        return "observer"
    if model == "gpt-4.1-mini":
        return "consistency"
    if model.startswith("claude") and not sees:
        return "planner"
    if model == "gpt-4.1" or request.get("tools"):
        return "agent"
    if "235B" in model and "trajector" in json.dumps(request["messages"]):
        return "verifier"
    return next((name for start, name in ANSWERERS.items() if model.startswith(start)), "answerer-large")


def _level_verdict(request: dict[str, Any]) -> dict[str, Any]:
    """GeoVista's second opinion on names, by a rule: the true one stands in the answer."""
    question = json.loads(request["messages"][-1]["content"])
    same = fold_text(question["true_name"]) in fold_text(question["answer"])
    message = {"role": "assistant", "content": json.dumps({"same": same})}
    usage = {"prompt_tokens": 200, "completion_tokens": 6, "total_tokens": 206}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "v", "object": "chat.completion", "model": request["model"], "choices": [choice], "usage": usage}


def _with_key(scope: Any, key: str, ours: str) -> Any:
    swap = re.compile(re.escape(key).replace(r"\|", r"(?:\||%7C)"), re.I)
    headers = [(name, swap.sub(ours, value.decode("latin-1")).encode("latin-1")) for name, value in scope["headers"]]
    return scope | {"headers": headers, "query_string": swap.sub(ours, scope["query_string"].decode()).encode()}


async def _body(receive: Any) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


class _Sent:
    """A request that was read, on its connection, which the world's fault layer looks at."""

    def __init__(self, body: bytes, receive: Any) -> None:
        self._body: bytes | None = body
        self._connection, self.transport = receive, receive.__self__.transport

    async def receive(self) -> Any:
        if self._body is None:
            return await self._connection()  # the end of the connection
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def vendors(roles: dict[str, Any]) -> dict[str, Vendor]:
    """Every vendor of the profile, by the name of its service or endpoint; `roles` of the profile name the models."""

    def models_of(endpoint: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r["model"] for r in roles.values() if r.get("endpoint", "chat") == endpoint))

    chat = ("/openai/v1",)
    street = ("/mapillary", "/mapillary-tiles", "/mapillary-cdn")
    listed = [
        Vendor("mapillary", street, "MAPILLARY_TOKEN"),
        Vendor("panoramax", ("/panoramax",)),
        Vendor("stac", ("/stac", "/sas", "/blob")),
        Vendor("geocoder", ("/nominatim",)),
        Vendor("maps", ("/maps",), "AMAP_KEY", MAPS_KEY),
        Vendor("world_maps", ("/places",), "GOOGLE_MAPS_KEY", OFFLINE_PLACES_KEY),
        Vendor("search", ("/tavily",), "TAVILY_API_KEY", OFFLINE_SEARCH_KEY),
        Vendor("chat", chat, "OPENAI_API_KEY", models=models_of("chat")),
        Vendor("anthropic", chat, "ANTHROPIC_API_KEY", models=models_of("anthropic")),
        Vendor("google", chat, "GEMINI_API_KEY", OFFLINE_CHAT_KEY, models=models_of("google")),
        *(Vendor(name, chat, models=models_of(name)) for name in OWN_SERVERS),
    ]
    return {one.name: one for one in listed}


@contextlib.contextmanager
def served(doors: dict[str, Vendor], size: int) -> Iterator[dict[str, str]]:
    """The vendors' addresses, by name, until the block ends."""
    world = create_app(World(size=size), tokens=frozenset((KEYS["MAPILLARY_TOKEN"],)))
    with contextlib.ExitStack() as open_doors:
        addresses = {}
        for name, door in doors.items():
            door.world = world
            addresses[name] = open_doors.enter_context(serving(door))
        yield addresses


def settings_of_addresses(at: dict[str, str]) -> list[str]:
    """The addresses as settings: what a rehearsal changes of the profile's services, and all of it."""
    return [
        f"services.mapillary.base_url={at['mapillary']}/mapillary",
        f"services.mapillary.tiles_url={at['mapillary']}/mapillary-tiles/maps/vtp/mly1_public/2",
        f"services.panoramax.base_url={at['panoramax']}/panoramax/api",
        f"services.stac.base_url={at['stac']}/stac/api/stac/v1",
        f"services.stac.sas_url={at['stac']}/sas/api/sas/v1",
        f"services.geocoder.base_url={at['geocoder']}/nominatim",
        f"services.maps.base_url={at['maps']}/maps",
        f"services.world_maps.base_url={at['world_maps']}/places",
        f"services.world_maps.pictures_url={at['world_maps']}/places",
        f"services.search.base_url={at['search']}/tavily",
        f"services.chat.base_url={at['chat']}/openai/v1",
        *(f"models.endpoints.{name}.base_url={at[name]}/openai/v1" for name in ("anthropic", "google", *OWN_SERVERS)),
    ]
