"""The plan: where pictures are looked for."""

from schemas.tables.base import FLOAT, INT, STRING, Table, matches

TABLES = (
    Table(
        "places",
        ("place_id",),
        {
            "place_id": STRING,
            "country": STRING,  # ISO 3166 alpha-2
            "country_name": STRING,
            "admin1": STRING,
            "cell": STRING,  # south-west corner of the 1 degree cell, such as N48E002
            "lat": FLOAT,
            "lon": FLOAT,
            "weight": FLOAT,  # log(1 + population of the cell), GeoAgent eq. 12
            "probability": FLOAT,  # of drawing this cell inside its country
            "split": STRING,  # train, validation or benchmark; whole cells
            "city_id": STRING,  # of GeoNames; the city columns are null in a plan of the whole Earth
            "city": STRING,
            "city_lat": FLOAT,  # middle of the viewport
            "city_lon": FLOAT,
            "viewport_km": FLOAT,  # side of the square, true to scale, that stands for the city
            "seed": INT,
            "plan_version": STRING,
        },
        required=("country", "lat", "lon", "split"),
        about="where to look",
        expects=(
            matches("country", r"^[A-Z]{2}$", "country is an ISO 3166 alpha-2 code"),
            matches("cell", r"^[NS]\d{2}[EW]\d{3}$", "cell names a one-degree cell"),
        ),
    ),
)
