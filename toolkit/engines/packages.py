"""The packages that engines are made of, by name; imports none of them."""

PACKAGES = ("torch", "accelerate", "deepspeed")
"""Those whose version decides what is computed."""

WAITING = (
    "torch/distributed/",
    "torch/autograd/graph.py",
    "deepspeed/comm/",
    "deepspeed/runtime/",
    "toolkit/engines/engine.py",
    "toolkit/engines/norm.py",
    "toolkit/engines/ranks.py",
)
"""Files that Python is in while it waits for other ranks; backward is mostly such waiting too. On a
GPU collectives return at once, and the waiting is where a number is read next."""

LOST = ("gloo/transport", "ncclRemoteError", "NCCL communicator was aborted")
"""In the errors of collectives whose other end is gone; neither backend has a class for it."""
