"""The column layouts of photo tables: the plain one, and those of the well-known datasets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.ingest.refusal import TableRefused
from tasks.services.errors import safe_text

FIELDS = (
    *("id", "path", "url", "lat", "lon", "licence", "creator", "attribution", "captured_at", "compass_angle"),
    *("split", "kind", "sequence", "country"),
)


@dataclass(frozen=True)
class Layout:
    """Which column holds what. Names are compared without regard to case."""

    name: str
    about: str
    columns: Mapping[str, tuple[str, ...]]  # field -> accepted column names, best first
    marks: tuple[str, ...] = ()  # any of these beside the needed columns gives the layout away
    files: tuple[str, ...] = ()  # where a picture lies by its id: {id}, {flat} with / as _, {stem} before the suffix
    in_subfolders: bool = False  # or so one folder deeper
    split: str | None = None  # what the dataset is for, where nobody says otherwise
    licence: str | None = None  # of the whole dataset, where it has one
    attribution: str | None = None
    needed: tuple[str, ...] = ("id", "lat", "lon")
    encoded: tuple[str, ...] = ()  # columns written as in an address: + and %20 for a space
    headless: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # columns by their number, without header

    def fits(self, names: Sequence[str]) -> bool:
        """Whether a table with these column names has this layout."""
        have = {name.casefold() for name in names}
        known = all(have.intersection(self.columns[wanted]) for wanted in self.needed)
        return known and (not self.marks or bool(have.intersection(self.marks)))

    def pick(self, names: Sequence[str]) -> dict[str, str]:
        """For each field of the layout that the table has, the table's own name of its column."""
        own = {name.casefold(): name for name in reversed(names)}
        found = {f: next((own[a] for a in aliases if a in own), None) for f, aliases in self.columns.items()}
        return {f: name for f, name in found.items() if name is not None}


_LAT = ("lat", "latitude")
_LON = ("lon", "lng", "long", "longitude")

PLAIN = Layout(
    "plain",
    "id, path or url, lat, lon; optional licence, creator, attribution, captured_at, compass_angle, split, kind",
    {
        "id": ("id", "image_id", "photo_id"),
        "path": ("path", "file", "filename", "file_name", "image_path"),
        "url": ("url", "image_url", "download_url"),
        "lat": _LAT,
        "lon": _LON,
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

# Photos of Flickr, by their names in the benchmark archives; scene labels and probabilities are not read.
_FLICKR = {"id": ("img_id", "name"), "creator": ("author",), "lat": _LAT, "lon": _LON, "url": ("url",)}

MP16_PRO = Layout(
    "mp16-pro",
    "IMG_ID, LAT, LON and the levels of an address (city, state, country, continent)",
    {**_FLICKR, "country": ("country_code", "country"), "licence": ("licence", "license")},
    marks=("country", "continent", "neighbourhood", "county", "state"),
    # The table says ab/cd/123.jpg; the archives hold ab_cd_123.jpg.
    files=("{id}", "{flat}"),
    needed=("id", "lat", "lon"),
)

_YFCC100M = (
    *("line", "photo_id", "hash", "user_id", "user", "date_taken", "date_uploaded", "device", "title", "description"),
    *("user_tags", "machine_tags", "longitude", "latitude", "accuracy", "page_url", "download_url", "licence"),
    *("licence_url", "server", "farm", "secret", "secret_original", "extension", "marker"),
)

IM2GPS3K = Layout(
    "im2gps3k",
    "IMG_ID, AUTHOR, LAT, LON and scene labels",
    {**_FLICKR, "licence": ("licence", "license")},
    files=("{id}",),
    in_subfolders=True,
    split="benchmark",
)

YFCC4K = Layout(
    "yfcc4k",
    "IMG_ID, LAT, LON and scene labels; or the 25 tab-separated columns of YFCC100M without a header",
    {
        **_FLICKR,
        "id": ("img_id", "name", "photo_id"),
        "creator": ("author", "user"),
        "captured_at": ("date_taken",),
        "licence": ("licence", "license"),
        "url": ("download_url", "url"),
    },
    files=("{id}", "{id}.jpg"),
    in_subfolders=True,
    split="benchmark",
    encoded=("user",),
    headless={25: _YFCC100M, 24: _YFCC100M[1:]},
)

OSV5M = Layout(
    "osv5m",
    "id, latitude, longitude, country, region, city, sequence, captured_at, creator_username and more",
    {
        "id": ("id",),
        "url": ("thumb_original_url",),
        "lat": ("latitude",),
        "lon": ("longitude",),
        "creator": ("creator_username",),
        "captured_at": ("captured_at",),
        "sequence": ("sequence",),
        "country": ("country", "unique_country"),
    },
    marks=("creator_username", "thumb_original_url", "unique_sub-region", "quadtree_10_1000"),
    files=("{id}.jpg",),
    in_subfolders=True,  # images/train/00/123.jpg
    licence="CC BY-SA 4.0",
    attribution="Image {id} by {creator} on Mapillary, {licence}",
)

LAYOUTS = {layout.name: layout for layout in (PLAIN, MP16_PRO, IM2GPS3K, YFCC4K, OSV5M)}


def choose(wanted: str, names: Sequence[str], file_name: str) -> Layout:
    """The layout asked for, or the one these column names give away; TableRefused with what is missing."""
    if wanted != "auto":
        layout = LAYOUTS[wanted]
        if not layout.fits(names):
            raise TableRefused(
                f"{file_name}: this is not the {wanted} layout ({layout.about}); its columns are {listed(names)}; "
                "leave --layout away to have it recognised"
            )
        return layout
    # The exact layouts come first; of the two benchmarks, whose tables are alike, the file's name decides.
    benchmarks = (YFCC4K, IM2GPS3K) if "yfcc" in file_name.casefold() else (IM2GPS3K, YFCC4K)
    for layout in (OSV5M, MP16_PRO, *benchmarks, PLAIN):
        if layout.fits(names):
            return layout
    missing = [f for f in PLAIN.needed if not {n.casefold() for n in names}.intersection(PLAIN.columns[f])]
    raise TableRefused(
        f"{file_name}: no column {' and no column '.join(missing)} among {listed(names)}; name the columns as in the "
        f"plain layout ({PLAIN.about})"
    )


def listed(names: Sequence[str]) -> str:
    """Column names for a message."""
    return ", ".join(safe_text(name, limit=40) for name in names[:20]) + (
        f" and {len(names) - 20} more" if len(names) > 20 else ""
    )
