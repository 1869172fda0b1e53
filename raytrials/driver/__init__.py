"""The trial controller and what it drives: our subclasses of Ray's classes.

They take their bases from `raytrials._ray` and their rules from `raytrials.core`; nothing here
decides what a failure costs.
"""
