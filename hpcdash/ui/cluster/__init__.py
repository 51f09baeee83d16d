"""Clusters on the screen: the list of them, their nodes and queues."""
