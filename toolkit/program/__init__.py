"""One optimizer step of an engine, written down once as a sequence of events. Imports no torch."""
