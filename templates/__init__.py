"""Files that are copied for a user as a start."""
