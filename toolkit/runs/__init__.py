"""What runs left behind, read from their folders: to list, compare and draw."""
