"""Names of streets, people and shops, coined per language so that they sound right and point to few places."""

from __future__ import annotations

import random

# family | onsets | middles | endings. A name is onset + middle + ending; `-` is an empty middle, `_` a space.
_FAMILIES = """
en|Ash,Black,Cart,Dal,Ed,Fair,Green,Har,Kings,Lang,Mill,North,Oak,Pem,Rad,Stan,Thorn,Wal,Whit,Wood|-,er,ing,en,le|ton,ley,ford,field,worth,by,well,wick,combe,gate
fr|Bel,Char,Cour,Dela,Fon,Gau,Lam,Lau,Mar,Mont,Per,Poi,Rol,Sau,Val,Ver|-,ber,cel,ti,ri,vi|tier,lin,mont,ret,neau,lard,court,val,zac,ville
es|Al,Bar,Cas,Del,Est,Fuen,Gal,Her,Izq,Lar,Mon,Nav,Ol,Que,Sal,Vil|-,a,ar,e,ill,o|mendi,rreta,varez,nández,redo,taro,zuela,cano,gado,lejo
pt|Al,Bar,Car,Fer,Gon,Lour,Mag,Mou,Nog,Oli,Pin,Quei,Reb,Sar,Tei,Vas|-,a,ei,o,i|lhães,reira,veira,mento,valho,queira,çalves,nheiro,galho,doso
de|Alt,Bau,Brand,Eich,Fried,Grün,Hart,Kauf,Lind,Mühl,Neu,Rosen,Schön,Stein,Wald,Wein|-,en,er,el|mann,hofer,berg,brunn,bach,hauer,meister,feld,garten,stett
it|Al,Bel,Cap,Far,Gal,Lom,Man,Mor,Pal,Ros,Sal,San,Tor,Val,Ven,Zan|-,a,e,i,o|lini,retti,nardi,rosa,vecchio,ghieri,telli,donna,monte,ciani
nl|Blom,Dijk,Groen,Haver,Kamp,Linden,Meer,Nieuw,Olde,Roe,Schip,Tuin,Veld,Water,Wes,Zand|-,en,er|stra,huis,man,kamp,hof,brink,donk,burg,wijk,horst
nordic|Berg,Dal,Ek,Fors,Gran,Hag,Holm,Kvist,Lind,Lund,Norr,Sand,Sjö,Sten,Sund,Ås|-,en,a,e|ström,stad,mark,vall,lund,vik,by,sted,heim,nes
finnic|Aho,Har,Hei,Jär,Kal,Kivi,Kor,Lah,Lep,Mäki,Niemi,Pel,Ran,Saa,Tam,Vai|-,ko,li,ri,va|nen,lainen,mäki,niemi,salmi,järvi,koski,ranta,harju,vaara
slavic|Bor,Bran,Dob,Gor,Hor,Jar,Kov,Kras,Lip,Mal,Nov,Pet,Rad,Sok,Stan,Vrb|-,i,o,e|ák,ovský,inski,ecki,anek,ović,ina,owska,ovec,arić
russian|Alek,Bor,Dmi,Gri,Iva,Kali,Kras,Lom,Mir,Nov,Orl,Pet,Sem,Sok,Tur,Vol|-,no,i,o|senko,novskaya,gorod,rova,menov,lkova,shin,tovka,zhskaya,yanov
baltic|Ber,Dau,Gai,Jur,Kal,Lie,Mar,Ozo,Pet,Rud,Sau,Sil,Tau,Val,Vil,Zie|-,da,ga,ni|lis,vičius,kalns,pils,žas,iņš,utis,lejas,kaitis,auskas
hungarian|Ár,Bal,Bék,Csa,Deb,Fek,Gár,Hor,Kis,Lak,Mol,Nagy,Pap,Sza,Tol,Var|-,a,e,o|tos,bás,kási,váth,falvi,dvári,halmi,szegi,lányi,mezei
romanian|Alb,Bra,Cor,Dob,Flo,Gri,Ion,Lup,Mun,Neg,Pop,Rad,Stan,Tur,Ung,Vas|-,i,u,o|escu,eanu,oiu,ariu,așcu,ovici,eni,ilescu,ureanu,iteanu
turkic|Ak,Alp,Bay,Dem,Er,Gül,Kara,Koç,Öz,Sar,Tan,Taş,Top,Tur,Yal,Yıl|-,a,i,ı|demir,oğlu,kaya,türk,bek,han,soy,taş,doğan,gün
greek|Ang,Vas,Geor,Dim,El,Theo,Kar,Kon,Lam,Man,Nik,Pap,Spyr,Stef,Tsa,Char|-,a,i,o|opoulos,akis,idis,elis,otis,atos,ouras,aridis,ianos,anakis
arabic|Abd,Ama,Bas,Faj,Ham,Jab,Kha,Mah,Nas,Qas,Rah,Sal,Tah,Wad,Yus,Zay|-,a,i,u|mani,rawi,din,hadi,lidi,ssaf,bari,zouri,tani,yyad
persian|Ahm,Bah,Dar,Far,Ghol,Hos,Jam,Kar,Mehr,Nad,Par,Rost,Sham,Tab,Vah,Yaz|-,a,i,e|zadeh,pour,nejad,abadi,mand,shahi,yani,far,dari,vash
indic|Aman,Bal,Chand,Dev,Gan,Hari,Jay,Kri,Lak,Mahe,Nar,Om,Prem,Raj,Shiv,Vij|-,a,e,i|ndra,pur,shankar,prasad,lal,nath,mohan,wadi,nagar,gopal
japanese|山,田,中,高,松,小,大,西,東,北,南,川,石,森,竹,青|-,木,原,本,野,村|島,井,田,山,沢,橋,谷,崎,倉,浜
chinese|李,王,林,高,安,福,金,和,永,大,新,光,中,南,北,西|-,天,春,明,平,文|山,盛,海,林,宝,元,泰,江,成,昌
taiwanese|李,王,林,高,安,福,金,和,永,大,新,光,中,南,北,東|-,天,華,明,平,文|山,興,海,豐,寶,元,泰,江,慶,昌
korean|Baek,Cho,Dae,Gang,Han,Hwa,Jin,Jung,Kim,Min,Nam,Park,Seo,Sin,Won,Yang|-,a,eun,i|seong,hwan,dong,mun,cheon,gok,pyeong,san,jin,ho
thai|Ban,Chai,Dao,Inth,Kaeo,Lam,Mai,Nong,Phon,Rat,Sai,Suk,Thong,Udom,Wang,Yai|-,a,na,si|porn,chai,wong,phan,sawat,burin,kham,nakhon,thip,rong
viet|An,Bac,Cam,Dai,Gia,Hoa,Kim,Lam,Minh,Nam,Phuc,Quang,Son,Tan,Viet,Xuan|_|Thanh,Long,Phat,Hung,Loc,Binh,Dung,Hai,Khang,Tien
malay|Ahm,Bud,Cem,Dar,Gun,Har,Ind,Kus,Lest,Mel,Nur,Perm,Rah,Sri,Sut,Wid|-,a,i,u|wati,jaya,mulia,santoso,rahman,kencana,sari,putra,utomo,harjo
african|Aba,Chi,Dem,Ezi,Gat,Kam,Kib,Lwa,Mba,Mwa,Ngo,Nja,Oka,Sim,Tum,Wan|-,ba,ka,ta|nga,wero,ndi,mbe,koro,sani,gali,ruka,yembe,dari
caucasus|Aba,Bag,Dad,Gel,Ios,Kav,Lom,Mar,Naz,Ord,Pet,Sar,Tam,Var,Zak,Zur|-,a,i,o|shvili,dze,yan,adze,iani,ashvili,elyan,uryan,idze,osyan
pacific|Ale,Fa,Ha,Io,Ka,La,Le,Ma,Na,Pa,Sa,Ta,Tu,Va,Vai,Wai|-,la,ma,ni,lo|fonua,roa,tele,nui,kapa,vale,moana,lagi,tangi,pele
hebrew|Al,Bar,Ben,Dan,Eli,Gal,Har,Kar,Lev,Mor,Nah,Or,Raz,Shar,Tam,Zah|-,a,i,o|moni,shemi,zvi,avi,rit,lon,meli,gev,nai,dov
ethiopian|Abe,Bek,Des,Fik,Gir,Hai,Kas,Lem,Mel,Neg,Sel,Tad,Tes,Wol,Yar,Zer|-,a,e|tu,sse,ma,le,nesh,hun,worq,da,ssa,gist
"""

_LANGUAGES_OF = {
    "en": "en",
    "african": "zu sw rw rn ny mg",
    "fr": "fr ht",
    "de": "lb de",
    "es": "es ca tl",
    "pt": "pt tet",
    "it": "it mt",
    "nl": "nl af",
    "nordic": "sv no da is fo kl",
    "finnic": "fi et",
    "slavic": "pl cs sk hr sr sl mk sq",
    "russian": "bg ru uk be",
    "baltic": "lv lt",
    "hungarian": "hu",
    "romanian": "ro",
    "turkic": "tr az kk ky uz tk mn",
    "greek": "el",
    "arabic": "ar so dv",
    "persian": "fa ps tg ku ur",
    "hebrew": "he",
    "indic": "hi bn ne si ta dz",
    "japanese": "ja",
    "chinese": "zh",
    "taiwanese": "zh-TW",
    "korean": "ko",
    "thai": "th lo km my",
    "viet": "vi",
    "malay": "id ms",
    "ethiopian": "am ti",
    "caucasus": "ka hy",
    "pacific": "mi sm bi to",
}
_FAMILY_OF = {language: family for family, tags in _LANGUAGES_OF.items() for language in tags.split()}


def _parse() -> dict[str, tuple[list[str], list[str], list[str]]]:
    families = {}
    for row in _FAMILIES.strip().splitlines():
        name, onsets, middles, endings = row.split("|")
        families[name] = (
            onsets.split(","),
            [m.replace("-", "").replace("_", " ") for m in middles.split(",")],
            endings.split(","),
        )
    return families


_PARTS = _parse()
_LOCAL_NAMES = {
    "PH": "es",
    "PR": "es",
    "SG": "malay",
    "MY": "malay",
    "BN": "malay",
    "AE": "arabic",
    "PK": "persian",
    "MT": "it",
}
_ENGLISH_NAMED = frozenset(("AU", "NZ", "SH", "FK"))


def family_of(language: str, country: str, continent: str) -> str:
    """The family that names of a country's people and streets are coined from."""
    family = _FAMILY_OF.get(language) or _FAMILY_OF.get(language.split("-")[0]) or "en"
    if family == "en" and country not in _ENGLISH_NAMED:
        # English signs, local people: "Chandrapur Pharmacy" in India, "Mwanga Bakery" in Kenya.
        family = _LOCAL_NAMES.get(country) or {"AS": "indic", "AF": "african", "OC": "pacific"}.get(continent, "en")
    return family


def proper_name(language: str, country: str, continent: str, rng: random.Random) -> str:
    """A person's or street's name in the manner of the country, in the script its signs are painted in."""
    onsets, middles, endings = _PARTS[family_of(language, country, continent)]
    return rng.choice(onsets) + rng.choice(middles) + rng.choice(endings)


def names_of(family: str) -> tuple[list[str], list[str]]:
    """(names as `proper_name` coins them, longer names it never coins) of a family, sorted."""
    onsets, middles, endings = _PARTS[family]
    short = {a + b + c for a in onsets for b in middles for c in endings}
    if len(middles) == 1:
        long = {f"{a}{middles[0]}{c}{middles[0]}{b}" for a in onsets for c in endings for b in onsets}
    else:
        long = {a + b + d + c for a in onsets for b in middles for d in middles for c in endings}
    return sorted(short), sorted(long - short)
