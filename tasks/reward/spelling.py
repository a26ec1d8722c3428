"""One spelling for what models write in many: digits, signs, LaTeX, HTML, markdown, compass words of several scripts.

Every pattern has bounded repetition, so the time is linear in the text.
"""

import re

# Length is kept, but for markdown and zero-width characters, which go.
_CHARACTERS = str.maketrans(
    "．，；：－−–‐‑‒′’‘´ʹ″”“ʺº˚\u00a0\u2009\u202f\u3000≈≃≅∼～〜、｜（）＝｛｝٫،؛",
    ".,;:------'''''\"\"\"\"°°    ~~~~~~,|()={}.,;",
    "*`\u200b\u200e\u200f\u2066\u2069\ufeff$",
) | {ord(zero) + digit: str(digit) for zero in "０٠۰०০๐" for digit in range(10)}

# After a number: in Russian, Arabic, Hindi, Thai and Greek, whose letters Ν and Α are south and east.
_COMPASS = {
    "N": r"с\.\s?ш\.|северной широты|شمال(?:اً|ًا|ا|ي)?|उत्तर(?:ी)?|เหนือ|Β(?:όρεια)?|βόρεια",
    "S": r"ю\.\s?ш\.|южной широты|جنوب(?:اً|ًا|ا|ي)?|दक्षिण(?:ी)?|ใต้|Ν(?:ότια)?|νότια",
    "E": r"в\.\s?д\.|восточной долготы|شرق(?:اً|ًا|ا|ي)?|पूर्व(?:ी)?|ตะวันออก|Α(?:νατολικά)?|ανατολικά",
    "W": r"з\.\s?д\.|западной долготы|غرب(?:اً|ًا|ا|ي)?|पश्चिम(?:ी)?|ตะวันตก|Δ(?:υτικά)?|δυτικά",
}
_TAG = r"</?(?P<tag>[A-Za-z][A-Za-z0-9_-]{0,30})(?:\s[^<>]{0,100})?/?>"
_RULES: tuple[tuple[str, str], ...] = (
    (r"&(?:deg|#176|#xb0|#xB0);", "°"),
    (r"&(?:nbsp|thinsp|#160);", " "),
    (r"&prime;|&#39;|&apos;|\\prime", "'"),
    (r"&Prime;|&quot;", '"'),
    (r"\^\s?\{?\s?\\?(?:circ|degree|deg|o(?![a-z]))\s?\}?", "°"),
    (r"\\(?:text|math)?(?:degree|deg|circ)\b(?:\{\})?", "°"),
    (r"\\(?:text|mathrm|mathbf|textbf|textit|operatorname|rm)\s?\{\s?(?P<inner>[^{}]{0,60}?)\s?\}", "inner"),
    (r"\\(?:approx|simeq|sim)\b", "~"),
    (r"\\pm\b|\+/-|\+-", "±"),
    (r"\\(?:left|right|quad|qquad|big|Big)\b|\\[,;:! ()\[\]]", " "),
    (r"北纬|北緯|북위", " N "),
    (r"南纬|南緯|남위", " S "),
    (r"东经|東経|東經|동경", " E "),
    (r"西经|西経|西經|서경", " W "),
    (r"纬度|緯度|위도|[Шш]ирота|अक्षांश|অক্ষাংশ|ละติจูด|เส้นรุ้ง|קו רוחב", " latitude "),
    (r"经度|経度|經度|경도|[Дд]олгота|[Дд]овгота|देशा[ंन्]{1,2}तर|रेखांश|দ্রাঘিমাংশ|ลองจิจูด|เส้นแวง|קו אורך", " longitude "),
    (r"(?:خطوط|خط|دائرة|دوائر)\s(?:ال)?عرض|(?:ال)?عرض\sجغراف(?:ی|ي)ا[یيئ]{1,2}", " latitude "),
    (r"خطوط\s(?:ال)?طول|خط\s(?:ال)?طول|(?:ال)?طول\sجغراف(?:ی|ي)ا[یيئ]{1,2}", " longitude "),
    (r"(?i:(?:γεωγραφικ[όο]\s{1,2})?πλ[άα]το[ςσ])", " latitude "),
    (r"(?i:(?:γεωγραφικ[όο]\s{1,2})?μ[ήη]κο[ςσ])", " longitude "),
    (r"坐标|座標|좌표|[Кк]оординаты", " coordinates "),
    (r"(?:(?<=\d)|(?<=\d\s))(?:度|도)", "° "),
    (r"(?:(?<=\d)|(?<=\d\s))(?:分|분)", "' "),
    (r"(?:(?<=\d)|(?<=\d\s))(?:秒|초)", '" '),
    *((rf"(?:(?<=[\d°'\"])|(?<=[\d°'\"]\s))(?:{words})(?!\w)", f" {letter}") for letter, words in _COMPASS.items()),
    (r"(?:(?<=[^\d\s°'\"])|(?<=[^\d\s°'\"]\s))—\s?", " : "),
    (r"—", "-"),
    (_TAG, "tag"),
)
# The first character rules out most positions before any alternative is tried.
_FIRST = r"(?=[&^\\+<—北南东東西纬緯经経經坐座度分秒북남동서위경좌도분초ШшДдКксювзअदरउपঅদลเตใקخدعطاشجغΓγΠπΜμΒβΝνΑαΔδ])"
_RULE = re.compile(_FIRST + "(?:" + "|".join(f"(?P<r{i}>{pattern})" for i, (pattern, _) in enumerate(_RULES)) + ")")
_COORDINATE_TAGS = re.compile(r"(?:lat|latitude|lon|lng|long|longitude|coordinates?|coords?|location|point|gps)", re.I)


def plain_spelling(text: str) -> str:
    """The text with one spelling of digits, signs, quotes, spaces and compass words, without markup."""
    return _RULE.sub(_spell, text.translate(_CHARACTERS))


def _spell(match: re.Match[str]) -> str:
    number = int((match.lastgroup or "r0")[1:]) if (match.lastgroup or "").startswith("r") else _which(match)
    written = _RULES[number][1]
    if written == "inner":
        return f" {match['inner']} "
    if written == "tag":
        name = match["tag"]
        if not _COORDINATE_TAGS.fullmatch(name):
            return " "
        return " ; " if match[0].startswith("</") else f" {name}: "
    return written


def _which(match: re.Match[str]) -> int:
    return next(i for i in range(len(_RULES)) if match[f"r{i}"] is not None)
