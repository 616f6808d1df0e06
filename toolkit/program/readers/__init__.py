"""Of a step's program: its highest point, its traffic, what it holds, its seconds."""
