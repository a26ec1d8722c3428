"""Trajectories of every published system on the offline world, checked again by rules written a second time.

The checks import nothing of geofix: they read stored rows with the standard library, and compare quoted signs with what
the world's painter wrote into the picture, told results with the results, and driving sides with the country's. `python
-m bench recheck_trajectories` makes the rows first, each recipe with its own rules, until `GEOFIX_BENCH_KEPT` (100)
trajectories of it are kept or `GEOFIX_BENCH_PICTURES` are used; `GEOFIX_BENCH_ROWS` names a folder of rows that are
there already.
"""

import collections
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

from bench.goals import Goal, judge

KEPT, PICTURES = 100, 1000
NEAR_KM, ALIKE = 5.0, 0.6
ANSWER = re.compile(
    r"<answer>\s*Country: [^\n<]+\nCity: [^\n<]+\nLatitude: (-?\d+(?:\.\d+)?)\nLongitude: (-?\d+(?:\.\d+)?)\s*</answer>"
)
STATE = re.compile(r"<answer>\s*Country: [^\n<]+\nState: [^\n<]+\nCity: [^\n<]+\nAddress: [^\n<]+\s*</answer>")
JSON = re.compile(r'<answer>\{"lat": [^<]+, "lon": [^<]+, "city": "[^<]+", "country": "[^<]+"\}</answer>')
THOUGHT = re.compile(r"<think>([^<]*(?:<(?!/?think>)[^<]*)*)</think>(.*)", re.DOTALL)
QUOTED = re.compile(r'"([^"\n]{2,80})"|“([^”\n]{2,80})”|«([^»\n]{2,80})»|(?<!\w)\'([^\'\n]{2,80})\'(?!\w)')
DECIMAL = re.compile(r"(?<![\w.])-?\d{1,3}\.\d{3,}(?![\w.])")
SIDE = re.compile(r"traffic keeps to the (left|right)|driving side: (left|right)", re.IGNORECASE)
EMPTY = re.compile(r"The map has nothing for|does not know|There is no entry for|finds no page|No page is found")
LISTED = re.compile(
    r"The map lists for [^\n]*?: ([^,;\n]+)|(?:says|pages reads): ([^\n]{10,40})|entry on the map is ([^,\n]+)"
)
MAP_READING = re.compile(r"The map shows:.*")  # a map's own names, which are not painted on signs
TYPES = {"string": str, "number": (int, float), "integer": int, "boolean": bool, "array": list, "object": dict}


def problems(row: dict[str, Any]) -> list[str]:
    """Every rule of form, knowledge or distance that a row calling itself kept breaks."""
    found: list[str] = []
    messages = json.loads(row["messages_json"])
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in json.loads(row["tools_json"])}
    if messages[-1]["role"] != "assistant" or "user" not in [message["role"] for message in messages]:
        found.append("order of roles")
    calls = [call for message in messages for call in message.get("tool_calls", [])]
    found += [f"call: {what}" for call in calls for what in call_problems(call, tools, row)]
    if [call["id"] for call in calls] != [m["tool_call_id"] for m in messages if m["role"] == "tool"]:
        found.append("calls and responses do not match")
    for message in messages:
        if message["role"] == "tool" and "error" in json.loads(text_of(message)):
            found.append("a failed call")
        if message["role"] == "tool" and pictures_of(message) and "description" in text_of(message):
            found.append("an Observer's words in a tool response")
    if any("geocode" in name or "poi" in name for name in tools):
        found += coordinate_problems(messages)
        if not row["error_km"] < NEAR_KM:
            found.append(f"answer {row['error_km']:.1f} km away")
    if tools:
        found += form_problems(messages)
    asked = "".join(text_of(message) for message in messages if message["role"] in ("system", "user"))
    for secret in (row["image_id"], f"{row['true_lat']:.3f}", f"{row['true_lon']:.3f}"):
        if secret in asked:
            found.append("the question holds the truth")
    return found


def contradictions(row: dict[str, Any]) -> list[str]:
    """Statements that the results before them or the country's roads refute, and an answer in another country."""
    found: list[str] = []
    results: list[str] = []
    for message in json.loads(row["messages_json"]):
        text = text_of(message)
        if message["role"] == "tool":
            results.append(text)
        if message["role"] != "assistant":
            continue
        is_empty = all(re.fullmatch(r'\{"\w+": \[\]\}', result) for result in results)
        if EMPTY.search(text) and results and not is_empty:
            found.append(f"denies a result: {EMPTY.search(text)[0]}")  # type: ignore[index]
        for match in LISTED.finditer(text):
            told = next(group for group in match.groups() if group).split(". ")[0]  # a title stands before its text
            if not any(plain(told)[:30] in plain(result.replace('"', "")) for result in results) and results:
                found.append(f"tells of no result: {told}")
        sides = {side.lower() for groups in SIDE.findall(text) for side in groups if side}
        if sides - {row["drives_on"]}:
            found.append(f"traffic keeps to the {row['drives_on']}")
        results = []
    if not str(row["answer"]).startswith("{") and row["error_km"] is not None and row["error_km"] < NEAR_KM:
        country = re.search(r"Country: ([^\n<]+)", str(row["answer"]))
        if country and plain(country[1]) != plain(row["true_country"]):
            found.append(f"the answer says {country[1]}, it is {row['true_country']}")
    return found


def unseen_signs(row: dict[str, Any]) -> list[str]:
    """Quotations in thoughts that resemble nothing painted in the picture and nothing a tool or the question says.

    Of four letters and more: telephone numbers lose digits from afar, which invents no sign.
    """
    painted = [plain(line) for line in row["painted"]]
    found, said = [], ""
    for message in json.loads(row["messages_json"]):
        text = text_of(message)
        if message["role"] == "assistant":
            for groups in QUOTED.findall(statements(MAP_READING.sub("", text))):
                quoted = plain(next(part for part in groups if part))
                is_name = sum(letter.isalpha() for letter in quoted) >= 4
                if is_name and quoted not in said and not any(resembles(quoted, line) for line in painted):
                    found.append(f"no sign reads {quoted!r}")
        else:
            said += "\n" + plain(text)
    return found


def statements(text: str) -> str:
    """A thought, or the texts of a JSON object one a line."""
    thought = THOUGHT.fullmatch(text)
    try:
        value = json.loads(text)
    except ValueError:
        return thought[1] if thought else ""
    waiting, texts = [value], []
    while waiting:
        one = waiting.pop()
        texts += [one] if isinstance(one, str) else []
        waiting += list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else []
    return "\n".join(texts)


def resembles(quoted: str, line: str) -> bool:
    """Whether a quotation is a line, or a part of it, as it may be misread from afar."""
    quoted, line = (re.sub(r"\W", "", text) for text in (quoted, line))
    size = min(len(quoted), len(line))
    windows = {line[at : at + size] for at in range(len(line) - size + 1)}
    return any(difflib.SequenceMatcher(None, quoted, part, autojunk=False).ratio() >= ALIKE for part in windows)


def call_problems(call: dict[str, Any], tools: dict[str, Any], row: dict[str, Any]) -> list[str]:
    function = call["function"]
    schema = tools.get(function["name"])
    if schema is None:
        return ["a tool that was not offered"]
    arguments = json.loads(function["arguments"])
    if not isinstance(arguments, dict) or set(schema.get("required", [])) - set(arguments):
        return ["arguments are missing"]
    if set(arguments) - set(schema["properties"]):
        return ["arguments that the tool does not take"]
    wrong = [n for n, value in arguments.items() if not isinstance(value, TYPES[schema["properties"][n]["type"]])]
    if wrong:
        return [f"{wrong[0]} has a wrong type"]
    if "bbox_2d" in arguments:
        x1, y1, x2, y2 = arguments["bbox_2d"]
        if not (0 <= x1 < x2 <= row["view_width"] and 0 <= y1 < y2 <= row["view_height"]):
            return ["a box outside the picture that was shown"]
    return []


def form_problems(messages: list[dict[str, Any]]) -> list[str]:
    found = []
    asked = text_of(messages[0])
    form = ANSWER if "Latitude:" in asked else STATE if "State:" in asked else JSON
    for message in (m for m in messages if m["role"] == "assistant"):
        matched = THOUGHT.fullmatch(message["content"])
        if matched is None:
            found.append("no thought before a call or the answer")
        elif message is messages[-1] and not form.fullmatch(matched[2]):
            found.append("the answer is not in the prompt's form")
        elif message is not messages[-1] and matched[2].strip():
            found.append("words between the thought and the call")
    return found


def coordinate_problems(messages: list[dict[str, Any]]) -> list[str]:
    """Coordinates written before a tool gave them."""
    found: list[str] = []
    numbers: list[float] = []
    for message in messages:
        text = text_of(message)
        if message["role"] == "tool":
            numbers += [float(number) for number in DECIMAL.findall(text)]
        elif message["role"] == "assistant":
            for number in DECIMAL.findall(text):
                decimals = len(number.partition(".")[2])
                if not any(round(value, decimals) == float(number) for value in numbers):
                    found.append(f"a coordinate that no tool gave: {number}")
    return found


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def pictures_of(message: dict[str, Any]) -> int:
    content = message["content"]
    return 0 if isinstance(content, str) else sum(part["type"] == "image_url" for part in content)


def plain(text: str) -> str:
    """Letters without accents and case, blanks as one."""
    parts = unicodedata.normalize("NFKD", text.casefold().replace("ı", "i"))
    return " ".join("".join(c for c in parts if not unicodedata.combining(c)).split())


def make_rows(folder: Path, kept: int, pictures: int) -> None:
    """A file of rows for every published system that writes trajectories, made by one process with one world."""
    subprocess.run(
        [sys.executable, "-m", "bench.agent_pictures", "all", str(folder), str(kept), str(pictures)], check=True
    )


def main() -> int:
    given = os.environ.get("GEOFIX_BENCH_ROWS")
    wanted = int(os.environ.get("GEOFIX_BENCH_KEPT", KEPT))
    pictures = int(os.environ.get("GEOFIX_BENCH_PICTURES", PICTURES))
    goals = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(given or made)
        if not given:
            make_rows(folder, wanted, pictures)
        for file in sorted(folder.glob("*.jsonl")):
            goals += recheck(file, wanted)
    return judge(goals)


def recheck(file: Path, wanted: int) -> list[Goal]:
    """What one recipe's rows show."""
    name = file.stem
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kept = [row for row in rows if row["verdict"] == "kept"]
    reasons = collections.Counter(reason for row in rows for reason in row["reasons"])
    shares = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    print(f"   {name}: {len(kept)} kept of {len(rows)} trajectories; reasons: {shares}")
    goals = [Goal(f"{name}: kept trajectories", len(kept), at_least=wanted)]
    for what, check in (("break a rule", problems), ("contradicted", contradictions), ("unseen signs", unseen_signs)):
        broken = {row["image_id"]: found for row in kept if (found := check(row))}
        for image, found in list(broken.items())[:5]:
            print(f"      {what}: {image}: {'; '.join(found[:3])}")
        print(f"      {what}: {len(broken)}")
        goals.append(Goal(f"{name}: kept, {what}", len(broken), at_most=0))
    unreasoned = [row for row in rows if (row["verdict"] == "kept") != (not row["reasons"])]
    return [*goals, Goal(f"{name}: rejected without a reason", len(unreasoned), at_most=0)]


if __name__ == "__main__":
    raise SystemExit(main())
