"""Carries weight versions from the trainer to engines anywhere, as lossless deltas checked bit for bit.

`publisher.Publisher` writes versions to a `store`, `subscriber.Subscriber` takes them from it. The package itself
imports nothing, so that a process pays for numba and obstore only where it uses them.
"""
