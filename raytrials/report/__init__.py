"""What raytrials shows of an experiment. No Ray here: it runs where Ray is not installed."""
