"""Child processes: started, watched, and never left behind."""
