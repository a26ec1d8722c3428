"""Answers to the benchmark and their scores."""

from schemas.tables.base import FLOAT, INT, JSON, STRING, Table

TABLES = (
    Table(
        "predictions",
        ("evaluation_id", "image_id"),
        {
            "evaluation_id": STRING,
            "image_id": STRING,
            "snapshot_id": STRING,  # the snapshot it was made for; a later one with the same picture takes it over
            "policy": STRING,
            "tools": STRING,  # offered to it, or `none`
            "answer": STRING,
            "lat": FLOAT,
            "lon": FLOAT,
            "parse_error": STRING,
            "error_km": FLOAT,
            "geoscore": FLOAT,
            "levels_json": JSON,  # level -> its verdicts by rule and, where one was asked, by a model
            "address_km": FLOAT,  # of the geocoded address, where evaluate.geocode is set
            "end_reason": STRING,
            "tool_calls": INT,
            "tool_successes": INT,
            "tool_pattern": STRING,  # tools used, in the order of first use
            "prompt_tokens": INT,
            "completion_tokens": INT,
            "cost_usd": FLOAT,
            "seconds": FLOAT,
            "messages_json": JSON,  # the whole conversation; the view is named by its original's digest
            "view_width": INT,  # pixels of the picture the model saw; boxes are in these
            "view_height": INT,
        },
        required=("policy",),
        about="what was answered",
        shared=True,  # single answers, parallel scaling and the swarm, each with evaluations of its own
    ),
    Table(
        "deliberations",
        ("evaluation_id", "image_id"),
        {
            "evaluation_id": STRING,
            "image_id": STRING,
            "snapshot_id": STRING,
            "policy": STRING,
            "method": STRING,  # pass@1, verifier@N or best@N; of a swarm how it ended: consensus, majority, …
            # Of an evaluation that is the mean of several attempts: each one's answer, point, tools and cost. The
            # row of `predictions` is the first.
            "attempts_json": JSON,
            "rounds": INT,  # of discussion
            "answers_json": JSON,  # of the attempts the verifier was shown
            "verifier_input_json": JSON,  # the whole request; the picture by the sha256 of the bytes sent
            "verifier_answer": STRING,
        },
        required=("policy",),
        about="what led to an answer that several attempts or agents made",
        shared=True,
    ),
    Table(
        "scores",
        ("evaluation_id", "snapshot_id", "metric"),
        {
            "evaluation_id": STRING,
            "snapshot_id": STRING,  # whose pictures were answered: scores of several snapshots stand side by side
            "split": STRING,  # the pictures that were answered: benchmark, unless evaluate.split named others
            "metric": STRING,
            "policy": STRING,
            "value": FLOAT,
            "low": FLOAT,
            "high": FLOAT,
            "n": INT,
        },
        required=("policy", "n"),
        about="what it was worth, with 95 % intervals: exact binomial ones of shares, bootstrap ones of the rest",
        shared=True,  # policies, and people as a baseline
    ),
    Table(
        "score_slices",
        ("evaluation_id", "snapshot_id", "slice_by", "slice", "metric"),
        {
            "evaluation_id": STRING,
            "snapshot_id": STRING,
            "split": STRING,
            "slice_by": STRING,  # kind, tier, localizability, category, country, continent, tool_pattern, month
            "slice": STRING,
            "metric": STRING,
            "policy": STRING,
            "value": FLOAT,
            "low": FLOAT,
            "high": FLOAT,
            "n": INT,
        },
        required=("policy", "n"),
        about="the main metrics of parts of the benchmark",
    ),
    Table(
        "score_pairs",
        ("evaluation_id", "other_id", "snapshot_id", "metric"),
        {
            "evaluation_id": STRING,
            "other_id": STRING,
            "snapshot_id": STRING,
            "metric": STRING,
            "policy": STRING,
            "other_policy": STRING,
            "first": FLOAT,
            "second": FLOAT,
            "difference": FLOAT,  # of the other policy against the first, picture by picture
            "low": FLOAT,
            "high": FLOAT,
            "p": FLOAT,  # McNemar's exact test, two-sided; null where the metric is no share
            "only_first": INT,
            "only_second": INT,
            "n": INT,
        },
        required=("policy", "other_policy", "n"),
        about="two policies on the same pictures",
    ),
)
