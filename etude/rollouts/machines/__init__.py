"""Ray over several machines: started on bare ones over ssh, and joined by a run. A map of the package:

    config     the recipe's table `[machines]`: where the head is, and what the processes of each part ask of Ray
    bare_config   the file of `etude cluster`: which machines there are, how they are reached, what each must have
    ssh        one request to one machine by the plain `ssh` program
    far        what answers there: starts, looks after and ends Ray's processes of that machine
    bare       up, status and down of all of them
    joining    a run's way in: what all machines must share is looked at, and where its processes are placed
    room       what a run's processes ask for, beside what machines have
    table      Ray's own table of machines, and the wait until some have joined
    nodes_config   the file of `etude cluster manifest`: nodes that KubeRay or SkyPilot makes
    manifest   a recipe that fits such nodes, and what both forms have in common
    kuberay, skypilot   the two forms

Only `joining`, `far` and `table` know Ray. Secrets go by stdin and by the environment, never by a command line, and in
manifests they are named only.
"""
