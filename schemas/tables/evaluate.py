"""Answers to the benchmark and their scores."""

from schemas.tables.base import ATTEMPT, BOOL, ESTIMATE, FLOAT, INT, JSON, STRING, Table

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
            "levels_json": JSON,  # level -> its verdicts by rule and, where one was queried, by a model
            "address_km": FLOAT,  # of the geocoded address, where evaluate.geocode is set
            **ATTEMPT,
            "messages_json": JSON,  # the whole conversation; the view is named by its original's digest
            "view_width": INT,  # pixels of the picture the model saw; boxes are in these
            "view_height": INT,
            # Median distance of the other attempts at the picture, where a method makes several: its confidence.
            "spread_km": FLOAT,
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
        "calibrations",
        ("evaluation_id", "snapshot_id", "radius_group"),
        {
            "evaluation_id": STRING,
            "snapshot_id": STRING,
            "radius_group": STRING,
            "policy": STRING,
            "agent_recipe": STRING,
            "tools": STRING,
            "calibrated_on": STRING,  # the evaluation_id of the same policy on the validation split
            "answers": INT,  # of validation pictures, with a point
            "share": FLOAT,
            # The ceil((n + 1) share)-th smallest error in km, or error by scale; null: too few answers for any.
            "quantile": FLOAT,
            "floor_km": FLOAT,  # the scale is floor_km + spread_km; null: radii are not scaled
        },
        required=("policy", "answers", "share"),
        about="what conformal radii are made of: one quantile a group of answers",
    ),
    Table(
        "radii",
        ("evaluation_id", "snapshot_id", "image_id"),
        {
            "evaluation_id": STRING,
            "snapshot_id": STRING,
            "image_id": STRING,
            "policy": STRING,
            "radius_group": STRING,
            "radius_km": FLOAT,  # null: not enough answers, or this one names no point
            "covered": BOOL,  # whether the truth lies within it; null without one
            "abstains": STRING,  # no_point or too_large; null: the answer is given
        },
        required=("policy",),
        about="how far from each answer its place is, with the share that was requested",
    ),
    Table(
        "groundings",
        ("evaluation_id", "image_id"),
        {
            "evaluation_id": STRING,
            "image_id": STRING,
            "policy": STRING,
            "quoted": INT,  # signs that the answer's reasons quote
            "unseen_json": JSON,  # those that the reader does not find in the pictures; null without a reader
            "contradicted_json": JSON,  # sentences that results, answer or country show to be false
            "supported": BOOL,  # a tool gave a place near the answer, or of its town's name; null: none gave any place
            "grounded": BOOL,  # nothing that was checked speaks against it
        },
        required=("policy", "quoted", "grounded"),
        about="whether answers are right for the right reason",
    ),
    Table(
        "cue_losses",
        ("evaluation_id", "snapshot_id", "pictures", "metric"),
        {
            "evaluation_id": STRING,  # of the masked pictures
            "snapshot_id": STRING,
            "whole_id": STRING,  # the evaluation of the same pictures whole
            "policy": STRING,
            "cue": STRING,
            "pictures": STRING,  # all pictures, or pictures with the cue: those of which something was covered
            "metric": STRING,
            "whole": FLOAT,
            "without": FLOAT,
            "lost": FLOAT,  # whole less without, picture by picture
            "low": FLOAT,
            "high": FLOAT,
            "p": FLOAT,  # McNemar's exact test, two-sided; null where the metric is no share
            "n": INT,
        },
        required=("policy", "cue", "n"),
        about="what answers rest on: the accuracy lost without each kind of cue",
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
            **ESTIMATE,
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
            # kind, tier, localizability, category, country, belt, continent, tool_pattern, month or radius_group
            "slice_by": STRING,
            "slice": STRING,
            "metric": STRING,
            "policy": STRING,
            **ESTIMATE,
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
