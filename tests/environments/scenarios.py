"""A scenario on a backend: within a deadline, and the backend closed afterwards whatever happened."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager


def within(deadline_s, make, scenario):
    """What `scenario(make())` returns, on an event loop of its own."""

    async def whole():
        backend = make()
        try:
            async with asyncio.timeout(deadline_s):
                return await scenario(backend)
        finally:
            await backend.close()

    return asyncio.run(whole())


@asynccontextmanager
async def reaching_for_the_host(box):
    """Servers of the host are there, on loopback and on an abstract socket; the command tries both from the sandbox."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        name = f"\0etude-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        program = (
            "import socket, sys\n"
            "for family, address in ((2, ('127.0.0.1', int(sys.argv[1]))), (1, '\\0' + sys.argv[2])):\n"
            "    try: socket.socket(family).connect(address)\n"
            "    except ConnectionRefusedError: print('refused')\n"
        )
        await box.write_file("/tmp/try.py", program.encode())
        yield f"python3 /tmp/try.py {tcp.getsockname()[1]} {name[1:]}"
