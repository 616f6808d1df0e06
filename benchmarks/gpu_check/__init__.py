"""What a first GPU shows of what the project claims."""
