"""Which configuration of a run is the fastest that fits a cluster, why, and what it costs."""
