"""The name of a town in the language of its country, out of GeoNames' names without language tags.

A name is taken only where there is no doubt: the English name stands in a table of exonyms, or exactly one of the
town's names is written with the letters of its country's first official language and that language has an alphabet of
its own. Everywhere else the town's GeoNames name, which is the local one, stays.
"""

from typing import Any

# Letters by language, for languages whose alphabet tells them apart.
_ALPHABETS = {
    "ru": "абвгдеёжзийклмнопрстуфхцчшщъыьэюя",
    "uk": "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя",
    "be": "абвгдеёжзійклмнопрстуўфхцчшыьэюя",
    "bg": "абвгдежзийклмнопрстуфхцчшщъьюя",
    "mk": "абвгдѓежзѕијклљмнњопрстќуфхцчџш",
    "sr": "абвгдђежзијклљмнњопрстћуфхцчџш",
    "mn": "абвгдеёжзийклмноөпрстуүфхцчшщъыьэюя",
    "kk": "аәбвгғдеёжзийкқлмнңоөпрстуұүфхһцчшщъыіьэюя",
    "ky": "абвгдеёжзийклмнңоөпрстуүфхцчшщъыьэюя",
    "el": "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋΐΰ",
    "fa": "ءآأابپتثجچحخدذرزژسشصضطظعغفقکگلمنوهی",
    "ar": "ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي",
}
_RANGES = {  # scripts of one language
    "he": ("֐", "׿"),
    "hy": ("԰", "֏"),
    "ka": ("Ⴀ", "ჿ"),
    "th": ("฀", "๿"),
    "ko": ("가", "힣"),
    "km": ("ក", "៿"),
    "lo": ("຀", "໿"),
    "my": ("က", "႟"),
    "ja": ("぀", "鿿"),
}
# GeoNames files these under their English names; in their own country they are called otherwise.
_EXONYMS = """
AT Vienna=Wien
BE Antwerp=Antwerpen,Bruges=Brugge,Brussels=Bruxelles,Ghent=Gent
CH Geneva=Genève,Lucerne=Luzern
CN Beijing=北京,Chengdu=成都,Chongqing=重庆,Guangzhou=广州,Hangzhou=杭州,Nanjing=南京
CN Shanghai=上海,Shenzhen=深圳,Tianjin=天津,Wuhan=武汉
CZ Pilsen=Plzeň,Prague=Praha
DE Cologne=Köln,Munich=München,Nuremberg=Nürnberg
DK Copenhagen=København
DZ Algiers=الجزائر
EG Alexandria=الإسكندرية,Cairo=القاهرة
ES Seville=Sevilla
GR Athens=Αθήνα,Thessaloníki=Θεσσαλονίκη
IL Jerusalem=ירושלים,Tel Aviv=תל אביב
IN Bengaluru=ಬೆಂಗಳೂರು,Chennai=சென்னை,Delhi=दिल्ली,Kolkata=কলকাতা,Mumbai=मुंबई
IR Tehran=تهران
IT Florence=Firenze,Genoa=Genova,Milan=Milano,Naples=Napoli,Rome=Roma
IT Syracuse=Siracusa,Turin=Torino,Venice=Venezia
JP Kobe=神戸市,Kyoto=京都市,Nagoya=名古屋市,Osaka=大阪市,Sapporo=札幌市,Tokyo=東京,Yokohama=横浜市
KR Busan=부산,Incheon=인천,Seoul=서울
LU Luxembourg=Lëtzebuerg
MX Mexico City=Ciudad de México
NL The Hague=Den Haag
PH Manila=Maynila
PL Krakow=Kraków,Warsaw=Warszawa
PT Lisbon=Lisboa
RO Bucharest=București
RS Belgrade=Београд
RU Moscow=Москва,Saint Petersburg=Санкт-Петербург
SA Mecca=مكة,Medina=المدينة المنورة,Riyadh=الرياض
SE Gothenburg=Göteborg
SY Aleppo=حلب,Damascus=دمشق
TH Bangkok=กรุงเทพมหานคร
TW Kaohsiung=高雄,Taipei=臺北
UA Kharkiv=Харків,Kyiv=Київ,Lviv=Львів,Odesa=Одеса
VN Hanoi=Hà Nội,Ho Chi Minh City=Thành phố Hồ Chí Minh
"""
_TABLE = {
    (country, english): local
    for country, _, pairs in (line.partition(" ") for line in _EXONYMS.strip().splitlines())
    for english, local in (pair.split("=") for pair in pairs.split(","))
}
_SMALL = 50_000  # namesakes of a city below that keep their name


def local_place_name(city: dict[str, Any], languages: list[str]) -> str | None:
    """The local name where it differs from the GeoNames name, else None."""
    if city["population"] >= _SMALL and (known := _TABLE.get((city["countrycode"], city["name"]))):
        return known if known != city["name"] else None
    language = languages[0].split("-")[0] if languages else ""
    if language in _ALPHABETS:
        letters = set(_ALPHABETS[language] + " -’'")
        fitting = [name for name in city["alternatenames"] if name and set(name.casefold()) <= letters]
    elif language in _RANGES:
        low, high = _RANGES[language]
        fitting = [
            n for n in city["alternatenames"] if n and all(low <= letter <= high or letter == " " for letter in n)
        ]
    else:
        return None
    return fitting[0] if len(fitting) == 1 else None
