"""Every request to a model: cache, ledger and replay in one."""

from schemas.tables.base import FLOAT, INT, JSON, STRING, TIME, Table

TABLES = (
    Table(
        "calls",
        ("call_id",),
        {
            "call_id": STRING,  # the request hash; with a suffix where the request may be answered differently again
            "request_hash": STRING,  # of server, model, messages, tools and parameters, seed and trial included
            "role": STRING,
            "endpoint": STRING,
            "model": STRING,  # as requested
            "served_model": STRING,  # as the server names it
            "sampling_json": JSON,  # temperature, seed, max_tokens …
            "verdict": STRING,  # answered, cut_by_length, refused, failed_<kind of error>, or gpu_seconds of a pool
            "finish_reason": STRING,
            "prompt_tokens": INT,
            "completion_tokens": INT,
            "requests": INT,  # HTTP requests, failed ones included
            "seconds": FLOAT,  # from the question to the reply, waiting for limits included; of a pool: GPU seconds
            "cost_usd": FLOAT,  # null: the price is not known
            "reply_json": JSON,  # null: there was none
            "asked_at": TIME,
        },
        required=("request_hash", "role", "model", "verdict"),
        about="every request to a model, with its reply and price",
        shared=True,
    ),
)
