"""Replication: several members hold copies of one node's data path, and one of them leads."""
