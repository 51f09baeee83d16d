"""What the samples of a run mean, from arrays alone: pace, end, spikes, divergence, plateau, stall, cost of
restarts."""
