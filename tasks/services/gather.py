"""Coroutines run concurrently; when one fails, the others are cancelled."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from tasks.services.errors import ServiceError

T = TypeVar("T")


async def gather_all(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. Of several errors a retryable one is raised, so that the work is done again later.

    Otherwise the order of arrival would decide which error counts.
    """
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as several:
        errors = list(_leaves(several))
        retryable = [error for error in errors if isinstance(error, ServiceError) and error.retryable]
        raise (retryable or errors)[0] from None
    return [task.result() for task in tasks]


def _leaves(group: BaseExceptionGroup[Any]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
