"""What the rows of `labels` and `images` must agree with besides each other: the Earth, and the calendar."""

import polars as pl

from tasks.geo.labels import labels_of
from tasks.geo.names import same_city, same_region

MONTHS_AROUND = 6  # a month is compared with n before and after it
LEAST_PICTURES, LEAST_IN_MONTH = 200, 20  # fewer say nothing about a distribution
TIMES, SIGMAS = 3.0, 8.0  # a month stands out that holds that many times what its neighbours do, beyond chance


def address_agrees(labels: pl.DataFrame) -> pl.DataFrame:
    """`country_of_point` and `address_of_point` of each label: whether its country is that of its point, and its region
    or city too, whatever name it gives them. A level that is not given disputes nothing."""
    # Another check names what is not a point on Earth; here it lies at sea, where no address can be wrong.
    on_earth = pl.col("lat").is_between(-90, 90) & pl.col("lon").is_between(-180, 180)
    points = labels.select(pl.when(on_earth.fill_null(False)).then(pl.col("lat", "lon")).otherwise(0.0))
    own_labels = labels_of(points["lat"], points["lon"])
    pairs = labels.select("country_code", "region", "city").hstack(
        own_labels.select(code="country_code", place="region", town="city", district="district")
    )
    country = (pl.col("country_code") == pl.col("code")).fill_null(True) | pl.col("country_code").is_null()
    plain = (pl.col("region") == pl.col("place")).fill_null(False) | (pl.col("city") == pl.col("town")).fill_null(False)
    known = pairs.select(country=country, plain=plain)
    agrees = known["plain"].to_list()
    for number in [row for row, same in enumerate(agrees) if not same]:
        agrees[number] = _by_name(pairs.row(number, named=True))
    return pl.DataFrame({"country_of_point": known["country"], "address_of_point": pl.Series(agrees, dtype=pl.Boolean)})


def _by_name(row: dict[str, str | None]) -> bool:
    """Whether one level that both know is the same under another name; true where no level can be compared."""
    code, region, city = row["code"], row["region"], row["city"]
    compared = [same_region(region, other, code) for other in (row["place"], row["district"]) if region and other]
    compared += [same_city(city, row["town"], code)] if city and row["town"] else []
    return any(compared) if compared else True


def month_in_line(images: pl.DataFrame) -> pl.Series:
    """Whether each picture's month of capture holds no more pictures than the months around it make likely.

    Satellite scenes are left out: they are chosen by season. So are sets too small to say anything.
    """
    month = images.select(
        month=pl.when(pl.col("kind") != "satellite").then(
            pl.col("captured_at").dt.year() * 12 + pl.col("captured_at").dt.month().cast(pl.Int32)
        )
    )["month"]
    counts = dict(month.drop_nulls().value_counts().rows())
    if sum(counts.values()) < LEAST_PICTURES:
        return pl.Series("month_in_line", [True] * images.height, dtype=pl.Boolean)
    odd = []
    for at, count in counts.items():
        around = [counts.get(at + step, 0) for step in range(-MONTHS_AROUND, MONTHS_AROUND + 1) if step]
        expected = sum(around) / len(around)
        if (
            count >= LEAST_IN_MONTH
            and count >= TIMES * (expected + 1)
            and count - expected > SIGMAS * (expected + 1) ** 0.5
        ):
            odd.append(at)
    return (~month.is_in(odd)).fill_null(True).alias("month_in_line")
