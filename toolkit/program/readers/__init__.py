"""What a step's program says: its highest point, its traffic, what it holds, its seconds."""
