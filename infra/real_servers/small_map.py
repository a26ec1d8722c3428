"""A map in OpenStreetMap's XML, small enough to be imported in seconds: countries, divisions, towns, streets, houses.

What a geocoder gets wrong is on it: two towns of one name, a city that is its own state, a borough within a city, a
place without an English name, houses without a name.
"""

from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

Tags = dict[str, str]
Box = tuple[float, float, float, float]  # south, west, north, east


@dataclass
class _Map:
    nodes: list[str] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)

    def node(self, lat: float, lon: float, **tags: str) -> int:
        number = 1000 + len(self.nodes)
        self.nodes.append(_element("node", number, "", tags, f' lat="{lat:.7f}" lon="{lon:.7f}"'))
        return number

    def way(self, nodes: list[int], **tags: str) -> int:
        number = 500_000 + len(self.ways)
        self.ways.append(_element("way", number, "".join(f'<nd ref="{node}"/>' for node in nodes), tags))
        return number

    def street(self, points: list[tuple[float, float]], name: str, kind: str = "residential") -> None:
        self.way([self.node(*point) for point in points], highway=kind, name=name)

    def houses(self, first: tuple[float, float], numbers: range, street: str, postcode: str) -> None:
        for step, number in enumerate(numbers):
            place = {"addr:housenumber": str(number), "addr:street": street, "addr:postcode": postcode}
            self.node(first[0] + 0.0006 * step, first[1], **place)

    def area(self, box: Box, level: int, tags: Tags, label: int | None = None) -> None:
        """A boundary; its edges have many points, as a long straight one is not where it seems on a globe."""
        south, west, north, east = box
        steps = [step / 8 for step in range(8)]
        edge = [(south, west + (east - west) * step) for step in steps]
        edge += [(south + (north - south) * step, east) for step in steps]
        edge += [(north, east - (east - west) * step) for step in steps]
        edge += [(north - (north - south) * step, west) for step in steps]
        ring = [self.node(*point) for point in edge]
        members = f'<member type="way" ref="{self.way([*ring, ring[0]])}" role="outer"/>'
        members += f'<member type="node" ref="{label}" role="label"/>' if label else ""
        tags = {"type": "boundary", "boundary": "administrative", "admin_level": str(level), **tags}
        self.relations.append(_element("relation", 90_000 + len(self.relations), members, tags))

    def town(self, lat: float, lon: float, tags: Tags, half_deg: float = 0.0, level: int = 8) -> None:
        label = self.node(lat, lon, **tags)
        if half_deg:
            self.area((lat - half_deg, lon - half_deg, lat + half_deg, lon + half_deg), level, tags, label)


def _element(kind: str, number: int, inner: str, tags: Tags, more: str = "") -> str:
    words = "".join(f"<tag k={quoteattr(key)} v={quoteattr(value)}/>" for key, value in tags.items())
    return f'<{kind} id="{number}" version="1" timestamp="2026-01-01T00:00:00Z"{more}>{inner}{words}</{kind}>'


def _country(code: str, name: str, english: str) -> Tags:
    return {"name": name, "name:en": english, "ISO3166-1": code, "ISO3166-1:alpha2": code}


def _division(code: str, name: str, english: str = "") -> Tags:
    return {"name": name, "ISO3166-2": code} | ({"name:en": english} if english else {})


def _city(name: str, population: int, english: str = "", kind: str = "city") -> Tags:
    return {"place": kind, "name": name, "population": str(population)} | ({"name:en": english} if english else {})


def osm_xml() -> str:
    """The map as a file's text."""
    world = _Map()
    world.area((25.0, -124.0, 49.0, -67.0), 2, _country("US", "United States", "United States"))
    world.area((37.0, -91.5, 42.5, -87.5), 4, _division("US-IL", "Illinois"))
    world.area((41.2, -73.5, 42.9, -69.9), 4, _division("US-MA", "Massachusetts"))
    world.area((39.5, -90.0, 40.0, -89.2), 6, {"name": "Sangamon County", "border_type": "county"})
    world.area((42.0, -73.0, 42.35, -72.1), 6, {"name": "Hampden County", "border_type": "county"})
    for lat, lon, population, postcode in ((39.7990, -89.6440, 114394, "62701"), (42.1015, -72.5898, 155929, "01103")):
        world.town(lat, lon, _city("Springfield", population), 0.06)
        world.street([(lat - 0.01, lon), (lat, lon), (lat + 0.01, lon)], "Main Street", "primary")
        world.houses((lat + 0.0005, lon + 0.0003), range(102, 116, 2), "Main Street", postcode)
    world.street([(39.62, -89.36), (39.62, -89.34)], "County Road 8", "unclassified")  # in a county, in no town

    world.area((47.2, 5.8, 55.1, 15.1), 2, _country("DE", "Deutschland", "Germany"))
    world.area((47.2, 8.9, 50.6, 13.9), 4, _division("DE-BY", "Bayern", "Bavaria"))
    world.town(48.1371, 11.5754, _city("München", 1512491, "Munich"), 0.09, 6)
    world.area((48.14, 11.56, 48.17, 11.60), 9, {"name": "Maxvorstadt"})
    world.street([(48.1500, 11.5800), (48.1550, 11.5830), (48.1600, 11.5860)], "Leopoldstraße", "secondary")
    world.houses((48.1509, 11.5808), range(2, 24, 2), "Leopoldstraße", "80802")
    berlin = _city("Berlin", 3769962)
    world.town(52.5174, 13.3951, berlin | _division("DE-BE", "Berlin"), 0.17, 4)  # a state without a name above it
    world.street([(52.5170, 13.3890), (52.5175, 13.3990)], "Unter den Linden", "primary")

    world.area((30.9, 129.5, 45.6, 145.9), 2, _country("JP", "日本", "Japan"))
    world.area((35.5, 138.9, 35.9, 139.92), 4, _division("JP-13", "東京都", "Tokyo"))
    world.town(35.6938, 139.7036, _city("新宿区", 349385, "Shinjuku"), 0.03, 7)
    world.street([(35.6930, 139.7000), (35.6935, 139.7070)], "靖国通り", "primary")
    world.town(34.6937, 135.5023, _city("大阪市", 2750000))  # no English name

    world.area((49.9, -7.5, 58.7, 1.8), 2, _country("GB", "United Kingdom", "United Kingdom"))
    world.area((49.9, -5.8, 55.8, 1.8), 4, _division("GB-ENG", "England"))
    world.town(51.5073, -0.1276, _city("London", 8908083))
    world.area((51.484, -0.216, 51.539, -0.111), 8, {"name": "City of Westminster"})
    world.street([(51.5034, -0.1270), (51.5020, -0.1265)], "Downing Street")

    world.area((41.3, -4.8, 51.1, 9.6), 2, _country("FR", "France", "France"))
    world.area((44.1, 3.6, 46.5, 7.2), 4, _division("FR-ARA", "Auvergne-Rhône-Alpes"))
    world.area((45.5, 4.7, 45.9, 5.2), 6, _division("FR-69", "Rhône"))
    world.town(45.7578, 4.8320, _city("Lyon", 513275), 0.06)
    world.street([(45.7570, 4.8300), (45.7600, 4.8370)], "Rue de la République", "pedestrian")
    world.houses((45.7575, 4.8315), range(10, 60, 10), "Rue de la République", "69002")
    elements = "\n".join(world.nodes + world.ways + world.relations)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<osm version="0.6" generator="geofix">\n{elements}\n</osm>\n'
