"""Words a person reads on shop and street signs, by language.

Languages whose script the packaged OCR weights (PP-OCRv6) cannot read are written romanised, as bilingual signs in
those countries are: it reads Latin, Chinese and Japanese; Greek letters are in its alphabet but come out wrong.
Vietnamese is written without tone marks for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("bakery", "pharmacy", "school", "town_hall", "market", "restaurant")


@dataclass(frozen=True)
class SignWords:
    """The sign vocabulary of one language; `street` is a pattern with `{}` for the proper name."""

    language: str
    bakery: str
    pharmacy: str
    school: str
    town_hall: str
    market: str
    restaurant: str
    street: str

    def word(self, kind: str) -> str:
        """The word painted on a sign of this kind (one of KINDS)."""
        return str(getattr(self, kind))

    @property
    def street_word(self) -> str:
        """The word for street alone, as a reader would recognise it."""
        return self.street.replace("{}", "").strip(" .-")


# language | bakery | pharmacy | school | town hall | market | restaurant | street pattern
_ROWS = """
en|Bakery|Pharmacy|School|Town Hall|Market|Restaurant|{} Street
fr|Boulangerie|Pharmacie|École|Mairie|Marché|Brasserie|Rue {}
es|Panadería|Farmacia|Escuela|Ayuntamiento|Mercado|Restaurante|Calle {}
pt|Padaria|Farmácia|Escola|Câmara Municipal|Mercado|Restaurante|Rua {}
pt-BR|Padaria|Drogaria|Escola|Prefeitura|Mercado|Lanchonete|Rua {}
de|Bäckerei|Apotheke|Schule|Rathaus|Markt|Gasthaus|{}straße
it|Panificio|Farmacia|Scuola|Municipio|Mercato|Ristorante|Via {}
nl|Bakkerij|Apotheek|Basisschool|Gemeentehuis|Winkel|Eetcafé|{}straat
sv|Bageri|Apotek|Skola|Stadshus|Torghandel|Restaurang|{}gatan
no|Bakeri|Apotek|Skole|Rådhus|Dagligvare|Spisested|{}veien
da|Bageri|Apotek|Skole|Rådhus|Købmand|Spisehus|{}vej
fi|Leipomo|Apteekki|Koulu|Kaupungintalo|Kauppa|Ravintola|{}katu
is|Bakarí|Apótek|Skóli|Ráðhús|Verslun|Veitingahús|{}gata
pl|Piekarnia|Apteka|Szkoła|Ratusz|Sklep|Restauracja|ul. {}
cs|Pekařství|Lékárna|Škola|Radnice|Potraviny|Restaurace|{} ulice
sk|Pekáreň|Lekáreň|Škola|Radnica|Potraviny|Reštaurácia|{} ulica
hu|Pékség|Gyógyszertár|Iskola|Városháza|Bolt|Étterem|{} utca
ro|Brutărie|Farmacie|Școală|Primărie|Piață|Restaurant|Strada {}
hr|Pekara|Ljekarna|Škola|Gradska vijećnica|Tržnica|Restoran|Ulica {}
sr|Pekara|Apoteka|Škola|Skupština|Pijaca|Restoran|Ulica {}
sl|Pekarna|Lekarna|Šola|Občina|Tržnica|Gostilna|{} cesta
sq|Furrë buke|Farmaci|Shkollë|Bashkia|Tregu|Restorant|Rruga {}
et|Pagariäri|Apteek|Kool|Raekoda|Turg|Söögikoht|{} tänav
lv|Maiznīca|Aptieka|Skola|Rātsnams|Tirgus|Restorāns|{} iela
lt|Kepykla|Vaistinė|Mokykla|Savivaldybė|Turgus|Restoranas|{} gatvė
tr|Fırın|Eczane|Okulu|Belediye|Pazar|Lokanta|{} Sokak
el|Artopoieio|Farmakeio|Scholeio|Dimarcheio|Agora|Taverna|Odos {}
ru|Khlebnaya|Apteka|Shkola|Administratsiya|Produkty|Stolovaya|Ulitsa {}
uk|Khlib|Apteka|Shkola|Miska Rada|Produkty|Yidalnya|Vulytsia {}
be|Khleb|Apteka|Shkola|Vykankam|Pradukty|Stalovaya|Vulitsa {}
bg|Pekarna|Apteka|Uchilishte|Obshtina|Pazar|Mehana|Ulitsa {}
mk|Furna|Apteka|Uchilishte|Opshtina|Pazar|Meana|Ulica {}
ka|Puri|Aptiaki|Skola|Meria|Bazari|Restorani|{} Kucha
hy|Hatsi Tun|Deghatun|Dprots|Kaghakapetaran|Shuka|Khorovats|{} Poghots
az|Çörek|Aptek|Mekteb|Belediyye|Bazar|Yemekxana|{} küçesi
kk|Nan|Darikhana|Mektep|Akimat|Bazar|Askhana|{} koshesi
ky|Nan|Darykana|Mektep|Meriya|Bazar|Ashkana|{} kochosu
uz|Novvoyxona|Dorixona|Maktab|Hokimiyat|Bozor|Oshxona|{} ko'chasi
tg|Nonvoykhona|Dorukhona|Maktab|Hukumat|Bozor|Oshkhona|Kuchai {}
tk|Çörek|Dermanhana|Mekdep|Häkimlik|Bazar|Naharhana|{} köçesi
mn|Talkh|Emiin San|Surguuli|Zakhirgaa|Khuns|Tsainy Gazar|{} Gudamj
ja|パン屋|薬局|小学校|市役所|市場|食堂|{}通り
zh|面包店|医院|中学|市政府|超市|大酒店|{}路
zh-TW|餅店|藥局|國小|市公所|市場|小吃店|{}路
ko|Ppangjip|Yakguk|Hakgyo|Sicheong|Sijang|Sikdang|{}-ro
th|Ran Khanompang|Ran Khai Ya|Rong Rian|Thesaban|Talat|Ran Ahan|Thanon {}
lo|Han Khao Chi|Han Khai Ya|Hong Hian|Ho Kham|Talat Sao|Han Ahan|Thanon {}
km|Hang Nompang|Ousathsthan|Sala Rien|Sala Krong|Phsar|Phochaniyathan|Phlov {}
my|Mont Hsaing|Hsay Hsaing|Kyaung|Myone Yone|Zay|Htamin Hsaing|{} Lan
vi|Banh Mi|Nha Thuoc|Truong Hoc|Uy Ban|Cho|Quan An|Duong {}
id|Toko Roti|Apotek|Sekolah|Kantor Walikota|Pasar|Rumah Makan|Jalan {}
ms|Kedai Roti|Farmasi|Sekolah|Majlis Perbandaran|Pasar|Restoran|Jalan {}
tl|Panaderya|Botika|Paaralan|Munisipyo|Palengke|Kainan|{} St.
ar|Makhbaz|Saydaliyya|Madrasa|Baladiyya|Souk|Mataam|Shari {}
ar-MA|Makhbaza|Saydalia|Madrasa|Jamaa|Souk|Mataam|Zanqat {}
fa|Nanvayi|Darukhaneh|Madreseh|Shahrdari|Bazar|Chelokababi|Khiaban-e {}
ps|Nanwayi|Darmaltun|Showanzai|Sharwali|Bazar|Restorant|{} Sarak
ku|Nanewaxane|Dermanxane|Qutabxane|Sharewani|Bazar|Chishtxane|Sheqami {}
he|Ma'afiya|Beit Mirkahat|Beit Sefer|Iriya|Shuk|Mis'ada|Rehov {}
hi|Bhandar|Aushadhalaya|Vidyalaya|Nagar Palika|Bazaar|Bhojanalaya|{} Marg
ur|Tandoor|Dawakhana|Madrasa|Baldia|Bazaar|Dhaba|Shahrah-e {}
bn|Ruti Ghor|Oushadhaloy|Bidyalaya|Pourashava|Bazar|Khabar Hotel|{} Sarak
ne|Roti Pasal|Aushadhi Pasal|Vidyalaya|Nagarpalika|Bajar|Bhojanalaya|{} Marg
si|Pan Kade|Bet Shalawa|Vidyalaya|Nagara Sabhava|Pola|Aapana Shala|{} Mawatha
ta|Rotti Kadai|Marunthagam|Palli|Nagaratchi|Sandhai|Unavagam|{} Theru
dz|Boleng|Menkhang|Lobdra|Thromde|Throm|Zakhang|{} Lam
dv|Roshi Fihaara|Beys Fihaara|Madhurusa|Idhaara|Fihaara|Hotaa|{} Magu
sw|Mkate|Duka la Dawa|Shule ya Msingi|Halmashauri|Soko|Mgahawa|Barabara ya {}
so|Foorno|Farmashi|Dugsiga|Dawladda Hoose|Suuqa|Makhaayad|Waddada {}
am|Dabo Bet|Medhanit Bet|Timhirt Bet|Mazegaja Bet|Gebeya|Migib Bet|{} Menged
ti|Enda Bani|Enda Medhanit|Bet Timhirti|Mimihidar|Idaga|Bet Migbi|{} Godena
rw|Umugati|Farumasi|Ishuri|Akarere|Isoko|Resitora|Umuhanda {}
rn|Umukate|Farumasi|Ishure|Komine|Isoko|Resitora|Ibarabara rya {}
mg|Mofo|Fivarotam-panafody|Sekoly|Lapan'ny tanana|Tsena|Hotely gasy|Lalana {}
af|Bakkery|Apteek|Laerskool|Stadsaal|Slaghuis|Restaurant|{}straat
zu|Bakery|Ikhemisi|Isikole|Umasipala|Imakethe|Shisanyama|{} Road
ht|Boulanjri|Famasi|Lekòl|Meri|Mache|Restoran|Ri {}
mt|Furnar|Spiżerija|Skola|Kunsill|Suq|Ristorant|Triq {}
ca|Fleca|Farmàcia|Escola|Casa de la Vila|Mercat|Fonda|Carrer {}
lb|Bäckerei|Apdikt|Schoul|Gemeng|Maart|Wiertshaus|Rue {}
fo|Bakarí|Apotek|Skúli|Ráðhús|Handil|Matstova|{}vegur
kl|Iffiorfik|Apoteki|Atuarfik|Kommunia|Pisiniarfik|Neriniartarfik|{} Aqqusernga
ny|Buledi|Mankhwala|Sukulu|Boma|Msika|Malo Odyera|Msewu wa {}
mi|Whare Parāoa|Whare Rongoā|Kura|Whare Kaunihera|Mākete|Wharekai|{} Street
sm|Fale Falaoa|Fale Talavai|Aoga|Malo|Maketi|Faleaiga|{} Street
tet|Padaria|Farmásia|Eskola|Munisípiu|Merkadu|Restaurante|Rua {}
bi|Bredhaos|Meresinhaos|Skul|Gavman|Maket|Kakaehaos|{} Rod
to|Fale Ma|Fale Faito'o|Ako|Pule'anga|Maketi|Fale Kai|Hala {}
"""


def _parse() -> dict[str, SignWords]:
    return {row.split("|")[0]: SignWords(*row.split("|")) for row in _ROWS.strip().splitlines()}


WORDS: dict[str, SignWords] = _parse()
"""Language tag -> sign words. A tag with a region (`pt-BR`) wins over its language (`pt`)."""


def words_for(tag: str) -> SignWords | None:
    """The sign words of a language tag like `fr-CA`, falling back to the bare language, or None when unknown."""
    return WORDS.get(tag) or WORDS.get(tag.split("-")[0])
