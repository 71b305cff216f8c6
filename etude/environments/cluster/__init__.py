"""Sandboxes of many machines: the scheduler of `scheduling/` made real on Ray. A map of the package:

    config     what a caller says: which cluster, on whose behalf, how patient
    settings   what a cluster is started with: of its agents and of its scheduler
    agent      one machine: owns a Node, obeys orders, says what became of them
    reporter   what an agent says, in order, until the scheduler has heard it
    service    the scheduler at work: a clock, orders sent, callers woken
    calls      calls between processes, and what is said when one is gone
    actors     agent and service as Ray actors
    launch     starts them, and stops them
    backend    the `cluster` backend: a caller's end
    sandbox    its sandboxes, whose calls go to their machine and not through the scheduler
    routed     the `routed` backend: several clusters or servers as one

Only calls, actors, launch, backend and sandbox import Ray. What a sandbox is made of (its files) goes from the caller
to the machine through Ray's object store: the scheduler passes on a reference that it never opens.
"""
