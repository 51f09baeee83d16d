"""What is known of each cluster, kept fresh politely and remembered between runs. Async."""
