"""Where a sandbox goes, and what becomes of every request for one. A map of the package:

    messages    what node agents, the server and the scheduler say to each other
    ledger      the states of a request, and the count that never loses one
    headroom    the index of nodes by the room they have
    fleet       nodes, their reservations, what each holds, whether each lives
    placement   which node, and why that one
    queues      classes, tenants, fair shares, positions
    warm        how many VMs to boot before anyone asks
    scheduler   one cluster: all of the above behind a few events and one `decide`

Nothing here does I/O, reads a clock, sleeps or starts a task: time is an argument, orders are return values. So the
class that runs in production is the class that `benchmarks/scheduler.py` simulates and measures.
"""
