"""What Etude does with a user's files on the host itself, where no sandbox holds what it touches.

Whoever wrote a workspace may be hostile: a repository that was cloned, an agent that worked in it. `beneath` reads and
removes its files and follows no link, `repository` finds its git repository and believes nothing that its config says,
and `git` is the one place that starts git. Tools and commands of a session run in the sandbox, and need none of this.
"""
