"""SpotAgent's trajectories on the offline world, checked again by rules written a second time.

The checks import nothing of geofix: they read stored rows with the standard library. `python -m bench
recheck_trajectories` makes the rows first; `GEOFIX_BENCH_PICTURES` says of how many pictures, and
`GEOFIX_BENCH_ROWS` names a file of rows that are there already.
"""

import collections
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

from bench.goals import Goal, judge

PICTURES = 1000
MOST_CALLS, NEAR_KM = 6, 5.0
RULES = '["visible_signs", "given_coordinates", "unnamed_answer"]'
ANSWER = re.compile(
    r"<answer>\s*Country: [^\n<]+\nCity: [^\n<]+\nLatitude: (-?\d+(?:\.\d+)?)\nLongitude: (-?\d+(?:\.\d+)?)\s*</answer>"
)
THOUGHT = re.compile(r"<think>([^<]*(?:<(?!/?think>)[^<]*)*)</think>(.*)", re.DOTALL)
QUOTED = re.compile(r'"([^"\n]{2,80})"|“([^”\n]{2,80})”|«([^»\n]{2,80})»|(?<!\w)\'([^\'\n]{2,80})\'(?!\w)')
DECIMAL = re.compile(r"(?<![\w.])-?\d{1,3}\.\d{3,}(?![\w.])")
TYPES = {"string": str, "number": (int, float), "integer": int, "boolean": bool, "array": list, "object": dict}


def problems(row: dict[str, Any]) -> list[str]:
    """Every rule that a row calling itself kept breaks."""
    found: list[str] = []
    messages = json.loads(row["messages_json"])
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in json.loads(row["tools_json"])}
    roles = [message["role"] for message in messages]
    if roles[:2] != ["system", "user"] or roles[-1] != "assistant":
        found.append("order of roles")
    calls = [call for message in messages for call in message.get("tool_calls", [])]
    if len(calls) > MOST_CALLS:
        found.append("too many calls")
    found += [f"call: {what}" for call in calls for what in call_problems(call, tools, row)]
    if [call["id"] for call in calls] != [m["tool_call_id"] for m in messages if m["role"] == "tool"]:
        found.append("calls and responses do not match")
    for message in messages:
        if message["role"] == "tool" and "error" in json.loads(text_of(message)):
            found.append("a failed call")
        if message["role"] == "tool" and pictures_of(message) and "description" in text_of(message):
            found.append("an Observer's words in a tool response")
    found += form_problems(messages)
    found += knowledge_problems(messages, row["observations"] or [])
    last = ANSWER.search(text_of(messages[-1]))
    if last:
        error = haversine(float(last[1]), float(last[2]), row["true_lat"], row["true_lon"])
        if not error < NEAR_KM:
            found.append(f"answer {error:.1f} km away")
    asked = text_of(messages[0]) + text_of(messages[1])
    for secret in (row["image_id"], f"{row['true_lat']:.3f}", f"{row['true_lon']:.3f}"):
        if secret in asked:
            found.append("the question holds the truth")
    return found


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
    for message in (m for m in messages if m["role"] == "assistant"):
        matched = THOUGHT.fullmatch(message["content"])
        if matched is None:
            found.append("no thought before a call or the answer")
        elif message is messages[-1] and not ANSWER.fullmatch(matched[2]):
            found.append("the answer is not in the prompt's form")
        elif message is not messages[-1] and matched[2].strip():
            found.append("words between the thought and the call")
    return found


def knowledge_problems(messages: list[dict[str, Any]], observations: list[str]) -> list[str]:
    """What is quoted or computed before it could be known."""
    found: list[str] = []
    seen, numbers, looked = "", [], 0
    for message in messages:
        text = text_of(message)
        if message["role"] != "assistant":
            seen += "\n" + plain(text)
            for _ in range(pictures_of(message)):
                seen += "\n" + plain(observations[looked])
                looked += 1
            if message["role"] == "tool":
                numbers += [float(number) for number in DECIMAL.findall(text)]
            continue
        thought = THOUGHT.fullmatch(text)
        for groups in QUOTED.findall(thought[1] if thought else text):
            quoted = next(part for part in groups if part)
            if plain(quoted) not in seen:
                found.append(f"quotes what is nowhere to be seen: {quoted!r}")
        for number in DECIMAL.findall(text):
            decimals = len(number.partition(".")[2])
            if not any(round(value, decimals) == float(number) for value in numbers):
                found.append(f"a coordinate from nowhere: {number}")
        asked = " ".join(call["function"]["arguments"] for call in message.get("tool_calls", []))
        seen += "\n" + plain(text) + "\n" + plain(asked)
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


def haversine(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    p1, p2, dl = math.radians(lat1), math.radians(lat2), math.radians(lon2 - lon1)
    half = math.sin((p2 - p1) / 2) ** 2 + math.cos(p1) * math.cos(p2) * math.sin(dl / 2) ** 2
    return 2 * 6371.0 * math.asin(math.sqrt(half))


def made(pictures: int, folder: str) -> Path:
    """Rows of n pictures, made by a process of its own."""
    file = Path(folder) / "rows.jsonl"
    command = [sys.executable, "-m", "bench.agent_pictures", str(pictures), str(file), "spotagent", f"require={RULES}"]
    subprocess.run(command, check=True)
    return file


def main() -> int:
    given = os.environ.get("GEOFIX_BENCH_ROWS")
    pictures = int(os.environ.get("GEOFIX_BENCH_PICTURES", PICTURES))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(given) if given else made(pictures, folder)
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kept = [row for row in rows if row["verdict"] == "kept"]
    broken = {row["image_id"]: found for row in kept if (found := problems(row))}
    for image, found in list(broken.items())[:10]:
        print(f"   {image}: {'; '.join(found[:3])}")
    reasons = collections.Counter(reason for row in rows for reason in row["reasons"])
    patterns = collections.Counter(row["tool_pattern"] for row in kept)
    shares = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    print(f"   {len(rows)} trajectories of {len({row['image_id'] for row in rows})} pictures; kept {len(kept)}")
    print(f"   accepted {len(kept) / max(1, len(rows)):.1%}; reasons: {shares}")
    print(f"   ends: {dict(collections.Counter(row['end_reason'] for row in rows))}")
    print(f"   most common patterns of kept ones: {patterns.most_common(3)}")
    unreasoned = [row for row in rows if (row["verdict"] == "kept") != (not row["reasons"])]
    return judge(
        [
            Goal("kept trajectories that break no rule", 1 - len(broken) / max(1, len(kept)), at_least=1.0),
            Goal("kept trajectories", len(kept), at_least=1),
            Goal("rejected trajectories without a reason", len(unreasoned), at_most=0),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
