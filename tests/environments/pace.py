"""How long to wait for what, on whatever a sandbox runs."""


def slowness(backend):
    """How many times longer commands may take there than in a namespace."""
    return 10 if backend.capabilities.accel == "tcg" else 1
