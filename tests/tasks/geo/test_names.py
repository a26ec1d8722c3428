"""One table of names: what means the same country, region or city, and what does not."""

import pytest

from tasks.geo.names import city_names, country_code, country_names, region_names, same_city, same_country, same_region


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Republic of Ireland", "IE"), ("U.K.", "GB"), ("uk", "GB"), ("U.A.E.", "AE"), ("America", "US"),
        ("U.S.A.", "US"), ("Bosnia", "BA"), ("Trinidad & Tobago", "TT"), ("Kyrgyz Republic", "KG"), ("中国", "CN"),
        ("Deutschland", "DE"), ("Federal Republic of Germany", "DE"), ("Kingdom of Spain", "ES"), ("España", "ES"),
        ("日本", "JP"), ("Россия", "RU"), ("Republic of China", "TW"), ("People's Republic of China", "CN"),
        ("Republic of Korea", "KR"), ("Democratic Republic of the Congo", "CD"), ("Republic of the Congo", "CG"),
        ("Guinea", "GN"), ("Papua New Guinea", "PG"), ("Niger", "NE"), ("Nigeria", "NG"), ("Dominica", "DM"),
        ("Dominican Republic", "DO"), ("St. Lucia", "LC"), ("Côte d'Ivoire", "CI"), ("Ivory Coast", "CI"),
        ("The Netherlands", "NL"), ("Holland", "NL"), ("DEU", "DE"), ("Atlantis", None), ("", None), ("x" * 5000, None),
    ],
)  # fmt: skip
def test_a_country_is_known_by_any_usual_name(text: str, code: str | None) -> None:
    assert country_code(text) == code


def test_every_name_of_a_country_leads_back_to_it() -> None:
    for code in ("DE", "CN", "AE", "IE", "GB", "BR", "IN", "TT", "BA", "KG"):
        assert len(country_names(code)) > 20
        assert {country_code(name) for name in country_names(code)} == {code}
    assert same_country("Deutschland", "Germany") and same_country("Atlantis", "atlantis")
    assert not same_country("Niger", "Nigeria") and not same_country("Germany", "Atlantis")


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [
        ("NSW", "New South Wales", "AU"), ("N.S.W.", "New South Wales", "Australia"), ("NSW", "New South Wales", None),
        ("CA", "California", "US"), ("Calif.", "California", "US"), ("ON", "Ontario", "CA"), ("WA", "Washington", "US"),
        ("WA", "Western Australia", "AU"), ("SP", "São Paulo", "BR"), ("MH", "Maharashtra", "IN"),
        ("Bayern", "Bavaria", "DE"), ("NRW", "Nordrhein-Westfalen", "DE"), ("Ile de France", "Île-de-France", "FR"),
        ("Catalunya", "Catalonia", "ES"), ("東京都", "Tokyo", "JP"), ("D.C.", "District of Columbia", "US"),
        ("Québec", "Quebec", "CA"), ("Bavaria", "Bavaria Region", None),
    ],
)  # fmt: skip
def test_names_of_one_region_both_ways(a: str, b: str, code: str | None) -> None:
    assert same_region(a, b, code) and same_region(b, a, code)


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [
        ("WA", "Washington", "AU"), ("Saxony", "Bavaria", "DE"), ("Sachsen", "Sachsen-Anhalt", "DE"),
        ("England", "Scotland", "GB"), ("CA", "California", "CA"), ("", "Bavaria", "DE"),
    ],
)  # fmt: skip
def test_other_regions_are_others(a: str, b: str, code: str | None) -> None:
    assert not same_region(a, b, code) and not same_region(b, a, code)


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [
        ("München", "Munich", "DE"), ("Muenchen", "Munich", "DE"), ("Munchen", "München", "DE"),
        ("Washington", "Washington, D.C.", "US"), ("Frankfurt", "Frankfurt am Main", "DE"), ("NYC", "New York", "US"),
        ("Москва", "Moscow", "RU"), ("Boston, MA", "Boston", "US"), ("Saint Louis", "St. Louis", "US"),
        ("Bombay", "Mumbai", "IN"), ("Den Haag", "The Hague", "NL"), ("København", "Copenhagen", "DK"),
    ],
)  # fmt: skip
def test_names_of_one_city_both_ways(a: str, b: str, code: str) -> None:
    assert same_city(a, b, code) and same_city(b, a, code)


def test_other_cities_are_others_and_a_bare_alias_means_the_largest() -> None:
    assert not same_city("Frankfurt", "Frankfurt (Oder)", "DE")
    assert not same_city("Paris", "Lyon", "FR") and not same_city("Paris, Texas", "Paris", "FR")
    assert not same_city("", "Paris", "FR")


def test_all_names_of_a_place() -> None:
    assert {"munich", "munchen", "muenchen"} <= city_names("München", "Germany")
    assert {"bavaria", "bayern", "by"} <= region_names("Bayern", "DE")
    assert city_names("München", None) == {"munchen", "muenchen"}
