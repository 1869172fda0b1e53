"""What stands on storage: formats, and the one port through which they are read and written.

No Ray here: whatever reads an experiment runs where Ray is not installed.
"""
