"""Launch files, what starts processes by them, and who ends with whom."""
