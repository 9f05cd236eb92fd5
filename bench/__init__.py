"""Benchmarks: the speed of nsqd, compared with other servers on the same machine.

    targets    the measured servers: ours, a reference server, Redis, any other nsqd
    procfs     the cost of a server: CPU seconds and memory, its children included
    load       processes that publish and consume with as little CPU as possible
    latency    processes that publish at a steady rate and time each message
    crowd      thousands of consumers on one channel
    nsq redis  the two protocols of the load
    layered    connections with TLS or snappy
    driving    runs load on a server and measures its cost
    scenarios  the measurements; a new scenario is one function and one entry there
               (the functions: rates, delays, restarts)
    figures    samples, medians, ratios within a run
    goals      bounds for our figures
    report     tables, Markdown, JSON
    growth     the cost of a message as a dimension grows
    hostile    latency of a client, and nsqd's memory, while another client attacks
    history    throughput of reading history, and latency of live messages during it
    channels   ten thousand channels: statistics, stop, start, idle cost
    replication  the cost of replication; nats is the protocol and the servers of JetStream
    guard      compares the cost of a message with an earlier run
    plot       plots of the results
    log_bench  the log without a server

`python -m bench --help` lists the options. The load shares the machine with the servers, so
absolute rates mean little: compare within one run, and prefer messages per server CPU-second.
"""
