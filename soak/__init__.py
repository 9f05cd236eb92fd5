"""Soak test: load and faults for hours, to find leaks and lost messages.

    load      publishers and consumers of all types, in a process of their own
    faults    faults of nsqd and its disk
    samples   resources of nsqd: memory, handles, disk, delay of its event loop
    verdict   whether resources stayed constant and no message was lost. Pure
    plot      the samples as a picture

Two nsqds have the same load. One runs all the time, so that its memory can be compared: its clients
vanish, it is stopped and continued (SIGSTOP), its disk is full for a while. The other is killed
(kill -9) and restarted repeatedly.

`python -m soak --help` lists the options.
"""
