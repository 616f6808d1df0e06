"""A folder for the front of PYTHONPATH; it holds `sitecustomize.py` alone."""
