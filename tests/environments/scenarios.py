"""A scenario on a backend: within a deadline, and the backend closed afterwards whatever happened."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager

EVERYWHERE = {
    "test_exit_codes_output_order_and_environment", "test_it_outlives_the_call_and_ends_by_kill_with_its_session",
    "test_snapshot_carries_the_workspace_and_forks_are_independent", "test_a_paused_sandbox_can_be_destroyed",
    "test_what_is_in_the_way_is_replaced_and_the_rest_stays", "test_writes_make_parents_and_replace",
    "test_the_compiler_and_git_work", "test_without_one_there_is_no_network", "test_a_fork_is_all_or_none",
}  # fmt: skip
"""Of the conformance suite one scenario of each file, or two: always played, on all backends that start quickly."""


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
