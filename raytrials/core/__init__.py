"""The rules: pure functions over plain data. No Ray, no disk, no clock, no randomness."""
