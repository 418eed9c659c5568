"""The socket that the server listens on."""

from __future__ import annotations

import asyncio
import socket

from tensorsharp_app_server.program import listen


def test_small_pieces_are_sent_at_once() -> None:
    assert asyncio.run(sends_at_once(listen("127.0.0.1", 0)))


async def sends_at_once(listening: socket.socket) -> bool:
    """Whether asyncio lets the connection of a client wait for no acknowledgement (TCP_NODELAY)."""
    connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    async with await asyncio.start_server(lambda _, writer: connected.set_result(writer), sock=listening):
        _, client = await asyncio.open_connection(*listening.getsockname()[:2])
        ours = await asyncio.wait_for(connected, 20)
        at_once = ours.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for writer in (client, ours):
            writer.close()
            await writer.wait_closed()
    return bool(at_once)
