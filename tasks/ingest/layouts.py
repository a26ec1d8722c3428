"""The column layouts of photo tables: the plain one, and those of the well-known datasets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas.settings.ingest import IngestSettings, Purpose
from tasks.services.errors import safe_text


@dataclass(frozen=True)
class Layout:
    """Which column holds what. Names are compared without regard to case."""

    name: str
    about: str
    columns: Mapping[str, tuple[str, ...]]  # field -> accepted column names, best first
    # Where a picture lies by its id: {id}; {flat} with / as _; {deep}, where ab_cd_1.jpg is ab/cd/1.jpg.
    files: tuple[str, ...] = ()
    in_subfolders: bool = False  # or so one folder deeper
    split: str | None = None  # what the dataset is for, unless a row or an option says otherwise
    purpose: Purpose = "pool"  # likewise: a published benchmark or training set stays whole
    licence: str | None = None  # of the whole dataset, where it has one
    attribution: str | None = None
    needed: tuple[str, ...] = ("id", "lat", "lon")
    marks: tuple[str, ...] = ()  # columns that tell it from other tables,
    least_marks: int = 2  # so many of them at least
    file_name: str = ""  # a pattern that tells it from others with the same columns
    encoded: tuple[str, ...] = ()  # columns written as in an address: + and %20 for a space
    headless: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # columns by their number, without header

    def fits(self, names: Sequence[str]) -> bool:
        """Whether a table with these column names can be read by this layout."""
        have = {name.casefold() for name in names}
        return all(have.intersection(self.columns[wanted]) for wanted in self.needed)

    def pick(self, names: Sequence[str]) -> dict[str, str]:
        """For each field of the layout that the table has, the table's own name of its column."""
        own = {name.casefold(): name for name in reversed(names)}
        picked = {f: next((own[a] for a in aliases if a in own), None) for f, aliases in self.columns.items()}
        return {f: name for f, name in picked.items() if name is not None}


PLAIN = Layout(
    "plain",
    "id, path or url, lat, lon; optional licence, creator, attribution, captured_at, compass_angle, split, kind",
    {
        "id": ("id", "image_id", "photo_id", "img_id"),
        "path": ("path", "file", "filename", "file_name", "image_path"),
        "url": ("url", "image_url", "download_url"),
        "lat": ("lat", "latitude"),
        "lon": ("lon", "lng", "long", "longitude"),
        "licence": ("licence", "license"),
        "creator": ("creator", "author", "photographer"),
        "attribution": ("attribution", "credit"),
        "captured_at": ("captured_at", "taken_at", "datetime", "date"),
        "compass_angle": ("compass_angle", "heading", "bearing"),
        "split": ("split",),
        "kind": ("kind",),
        "sequence": ("sequence", "sequence_id"),
        "country": ("country_code", "country"),
    },
    needed=("lat", "lon"),
)

# Photos of Flickr, by their names in the archives. What a user adds to such a table under the plain layout's names
# counts as it does there; scene labels and their probabilities are not read.
_FLICKR = {**PLAIN.columns, "id": ("img_id",)}

MP16_PRO = Layout(
    "mp16-pro",
    "IMG_ID, LAT, LON; MP16-Pro has the levels of an address as well (city, state, country, continent)",
    _FLICKR,
    # The table says ab/cd/123.jpg; archives hold ab_cd_123.jpg, and there are copies of both the other way round.
    files=("{id}", "{flat}", "{deep}"),
    purpose="training",
    file_name=r"(?<![a-z0-9])mp[-_ ]?16",
)

_YFCC100M = (
    *("line", "photo_id", "hash", "user_id", "user", "date_taken", "date_uploaded", "device", "title", "description"),
    *("user_tags", "machine_tags", "longitude", "latitude", "accuracy", "page_url", "download_url", "licence"),
    *("licence_url", "server", "farm", "secret", "secret_original", "extension", "marker"),
)

IM2GPS3K = Layout(
    "im2gps3k",
    "IMG_ID, AUTHOR, LAT, LON and scene labels",
    _FLICKR,
    files=("{id}",),
    in_subfolders=True,
    split="benchmark",
    purpose="benchmark",
    file_name="im2gps",
)

YFCC4K = Layout(
    "yfcc4k",
    "IMG_ID, LAT, LON and scene labels; or the 25 tab-separated columns of YFCC100M without a header",
    {
        **_FLICKR,
        "id": ("img_id", "photo_id"),
        "creator": (*PLAIN.columns["creator"], "user"),
        "captured_at": (*PLAIN.columns["captured_at"], "date_taken"),
        "url": ("download_url", *PLAIN.columns["url"]),
    },
    files=("{id}", "{id}.jpg"),
    in_subfolders=True,
    split="benchmark",
    purpose="benchmark",
    encoded=("user",),
    file_name="yfcc[-_ ]?4k",
    headless={25: _YFCC100M, 24: _YFCC100M[1:]},
)

OSV5M = Layout(
    "osv5m",
    "id, latitude, longitude, country, region, city, sequence, captured_at, creator_username and more",
    {
        **PLAIN.columns,
        "id": ("id",),
        "url": ("thumb_original_url", *PLAIN.columns["url"]),
        "lat": ("latitude",),
        "lon": ("longitude",),
        "creator": ("creator_username", *PLAIN.columns["creator"]),
        "country": ("country", "unique_country"),
    },
    files=("{id}.jpg",),
    in_subfolders=True,  # images/train/00/123.jpg
    marks=("thumb_original_url", "creator_username", "quadtree_10_1000", "lon_bin", "drive_side", "unique_country"),
    licence="CC BY-SA 4.0",
    attribution="Image {id} by {creator} on Mapillary, {licence}",
)

# GeoComp's games name the panoramas of their rounds: one row for each of them, as its authors' scripts write it.
GEOCOMP = Layout(
    "geocomp",
    "panoID, lat, lng and nation, one row for each panorama of the games' rounds",
    {**PLAIN.columns, "id": ("panoid", "pano_id"), "country": ("nation",)},
    files=("{id}.jpg", "{id}.png"),
    in_subfolders=True,  # of the countries
    marks=("panoid", "nation"),
)

IMAGEO_2 = Layout(
    "imageo-2",
    "image_id, latitude, longitude, gmap_id, address and more: points of interest of IMAGEO-Bench's second dataset",
    # Its url is the page of the point of interest, not a picture.
    {**{name: names for name, names in PLAIN.columns.items() if name != "url"}, "id": ("image_id",)},
    files=("{id}.jpg", "{id}.png", "{id}"),
    in_subfolders=True,
    marks=("image_id", "gmap_id", "address"),
    least_marks=3,
)

STREET_VIEW_TEXT = Layout(
    "street-view-text",
    "imageName, address, lat, lon: the dataset's XML names addresses only, whose positions have to be added",
    {**PLAIN.columns, "id": ("imagename", "image_name")},
    files=("{id}",),  # img/14_03.jpg
    in_subfolders=True,
    marks=("imagename", "address"),
    split="benchmark",
    purpose="benchmark",
)

LAYOUTS = {
    layout.name: layout for layout in (PLAIN, MP16_PRO, IM2GPS3K, YFCC4K, OSV5M, GEOCOMP, IMAGEO_2, STREET_VIEW_TEXT)
}


def purpose_of(settings: IngestSettings, layout: Layout) -> Purpose:
    """What a dataset is for: what the settings say, else what the layout's is."""
    return settings.purpose or layout.purpose


def split_of_purpose(settings: IngestSettings, layout: Layout) -> str | None:
    """The split that follows from it; None: by cells."""
    chosen = {"benchmark": "benchmark", "training": "train"}.get(settings.purpose or "")
    return chosen or (layout.split if settings.purpose is None else None)


def held_out_split(settings: IngestSettings) -> str:
    """What rows that are held out are for: a training set is validated on its own, any other is a benchmark."""
    return "validation" if settings.purpose == "training" else "benchmark"


def listed(names: Sequence[str]) -> str:
    """Column names for a message."""
    return ", ".join(safe_text(name, limit=40) for name in names[:20]) + (
        f" and {len(names) - 20} more" if len(names) > 20 else ""
    )
