"""Penstock's soak: hours of what nsqd goes through, to see whether anything grows or gets lost.

    load      publishers and consumers of every kind, in a process of their own, and what they know
    faults    what happens to nsqd and its disk meanwhile
    samples   what nsqd takes: memory, handles, disk, and how late its loop is
    verdict   whether all that stayed as it was, and nothing was lost. Pure
    plot      the same for the eye

Two nsqds have the same load and different fates. One lives all through it, so that its memory can
be compared with what it was: its clients vanish, it is stopped and continued (SIGSTOP), its disk
takes no more for a while. The other is killed again and again (kill -9), and started anew.

`python -m soak --help` lists the options.
"""
