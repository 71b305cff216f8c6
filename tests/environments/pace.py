"""How long to wait for what, on whatever a sandbox runs."""


def slowness(backend):
    """How many times longer commands may take there than in a namespace."""
    return 10 if backend.capabilities.accel == "tcg" else 1


async def timed_out(run, enough_bytes=1):
    """What `await run(timeout_s)` was when its time ran out: with so much output, for which it has ever more time."""
    timeout_s = 0.3
    while True:
        result = await run(timeout_s)
        assert (result.timed_out, result.exit_code) == (True, 124), result
        if len(result.output) >= enough_bytes:
            return result
        timeout_s *= 2
