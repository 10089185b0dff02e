"""What can be seen of a run while it trains: log, trackers, retrieval, pictures."""
