from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tensorsharp.engine.handle import RequestHandle
from tensorsharp.engine.waking import Waking
from tensorsharp.types import Finished, Timings, TokenEvent, Usage

ENDED = Finished("length", 0, Usage(1, 0, 2), Timings())


def handles(waking: Waking, count: int) -> list[RequestHandle]:
    return [RequestHandle(str(number), 0, changed=waking.add) for number in range(count)]


async def waiting() -> None:
    """Let every task go on until it waits."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_one_call_wakes_all_tasks_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    waking = Waking()
    replies = handles(waking, 5)

    async def main() -> list[list[int]]:
        loop, calls = asyncio.get_running_loop(), 0
        call = loop.call_soon_threadsafe

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            return call(*arguments, **options)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        tasks = [asyncio.create_task(reply.ready()) for reply in replies]
        await waiting()
        for reply in replies:
            reply.token(TokenEvent(3, 0))
            reply.token(TokenEvent(4, 1))
        assert not any(task.done() for task in tasks)
        waking.wake()
        found = await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert calls == 1
        return [[event.token for event in events] for events in found]

    assert asyncio.run(main()) == [[3, 4]] * 5


def test_a_thread_is_woken_by_its_own_request() -> None:
    waking = Waking()
    first, second = handles(waking, 2)
    got: list[int] = []
    threads = [threading.Thread(target=lambda one=one: got.extend(e.token for e in one)) for one in (first, second)]
    for thread in threads:
        thread.start()
    first.token(TokenEvent(7, 0))
    first.finish(ENDED)
    waking.wake()
    threads[0].join(20)
    assert got == [7]
    assert threads[1].is_alive()
    second.finish(ENDED)
    waking.wake()
    threads[1].join(20)
    assert not threads[1].is_alive()


def test_a_loop_that_was_closed_keeps_nobody_from_being_woken() -> None:
    waking = Waking()
    lost, kept = handles(waking, 2)

    async def leave() -> None:
        task = asyncio.create_task(lost.ready())
        await waiting()
        task.cancel()

    async def stay() -> list[TokenEvent]:
        task = asyncio.create_task(kept.ready())
        await waiting()
        for reply in (lost, kept):
            reply.token(TokenEvent(1, 0))
        waking.wake()
        return await asyncio.wait_for(task, 20)

    asyncio.run(leave())
    assert asyncio.run(stay()) == [TokenEvent(1, 0)]


def test_tasks_that_gave_up_are_forgotten() -> None:
    (reply,) = handles(Waking(), 1)

    async def main() -> None:
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reply.ready(), 0.001)

    asyncio.run(main())
    assert len(reply.wake()) <= 1


def test_what_is_there_comes_at_once_and_then_nothing() -> None:
    waking = Waking()
    (reply,) = handles(waking, 1)
    for index in range(3):
        reply.token(TokenEvent(index, index))
    reply.finish(ENDED)

    async def main() -> list[int]:
        return [len(await reply.ready()) for _ in range(3)]

    assert asyncio.run(main()) == [3, 0, 0]
