"""The notebooks: built from one source, copied for the student, checked for the instructor."""
