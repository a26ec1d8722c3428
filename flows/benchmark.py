"""The benchmark of a month as a flow: what the monthly schedule runs."""

import logging
from dataclasses import replace

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from flows.options import RunOptions
from flows.session import open_session
from tasks.evaluate.benchmark_files import draw_month
from tasks.review import newest_snapshot, renew_site
from tasks.runtime.snapshots import approved_snapshot

logger = logging.getLogger("geofix.flows")


@flow(name="benchmark")
def benchmark(options: RunOptions = RunOptions()) -> str | None:
    """Draw, sign and publish the benchmark of the last month; returns its card, or nothing where no picture was left.

    Args:
        options: Which configuration to use: recipe, profile, file, lake and single settings.
    """
    with open_session(options, []) as session:
        settings = session.config.benchmark
        if settings.cutoff is None and not settings.models:  # schedules are switched on together
            logger.info("no benchmark is drawn: neither benchmark.cutoff nor benchmark.models is set")
            return None
        snapshot = approved_snapshot(session.lake, session.wanted_snapshot)
        context = replace(session.context(session.config, (), session.ready, str(flow_run.id or "")), snapshot=snapshot)
        result, drawn = draw_month(context, settings)
        session.results.append(result)
        page = drawn.card if drawn else "No picture of the month can be used; `geofix show rejects` says why.\n"
        create_markdown_artifact(key="benchmark", markdown=page, description="Benchmark of a month")
        row = newest_snapshot(session.lake)
        if row is not None:
            renew_site(session.lake, row)
        return drawn.card if drawn else None
