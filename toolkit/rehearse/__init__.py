"""Several machines pretended on one, with faults, before the real ones are paid for."""
