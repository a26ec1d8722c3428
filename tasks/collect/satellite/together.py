"""Several reads at once, all of them ended when one fails."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from tasks.services import ServiceError

T = TypeVar("T")


async def together(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. Of several errors the one is raised that may pass: then the work is done again later.

    Otherwise it would depend on the weather which error decides about a scene.
    """
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as several:
        errors = list(_leaves(several))
        passing = [error for error in errors if isinstance(error, ServiceError) and error.retryable]
        raise (passing or errors)[0] from None
    return [task.result() for task in tasks]


def _leaves(group: BaseExceptionGroup[Any]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
