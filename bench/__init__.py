"""Penstock's load: how fast is nsqd, beside what else one could have started.

    targets    the servers under load: ours, a yardstick, Redis, any other nsqd
    procfs     what a server costs: CPU seconds and memory, its children included
    load       processes that publish and consume, as cheaply as Python can
    latency    processes that publish at a steady pace and time each message
    crowd      thousands of consumers on one channel, by itself
    nsq redis  the two wires that the load speaks
    layered    connections with TLS or snappy under the protocol
    driving    load on a server, and what that cost
    scenarios  what is measured; a new scenario is one function and one entry there
               (the functions: rates, delays, restarts)
    figures    samples, medians, ratios within a run
    goals      what our figures have to reach
    report     tables, Markdown, JSON
    growth     how the cost of a message grows with what there is more of
    hostile    latency of a client, and nsqd's memory, while another client attacks
    history    throughput of reading history, and latency of live messages during it
    channels   ten thousand channels: statistics, stop, start, idle cost
    guard      whether a message has become more expensive than in an earlier run
    plot       pictures of all this
    log_bench  the log by itself, without a server

`python -m bench --help` lists the options. The load shares the machine with the servers, so wall
rates mean little by themselves: compare within one run, and look at messages per server CPU-second.
"""
