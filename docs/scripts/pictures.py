"""The pictures of README.md and docs/concepts.md."""

from docs.scripts.drawing import Drawing

_TITLES = {
    "overview": "Two files, one training loop, any engine, the same update",
    "step": "One optimizer step: 2 ranks x 3 micro-steps, one global batch, one update",
    "modes": "When gradients are reduced and how many are held, in the three accumulation modes",
}


def overview() -> str:
    """Return the whole toolkit: what goes in, what stays the same, what can be chosen."""
    drawing = Drawing(860, 330, _TITLES["overview"])
    drawing.card(20, 30, 210, 76, "run configuration", "model, data, optimizer,",
                 "tokens per optimizer step", kind="box")  # fmt: skip
    drawing.card(20, 134, 210, 76, "launch file", "strategy, processes,", "machines", kind="box")
    drawing.arrow(230, 68, 318, 100)
    drawing.arrow(230, 172, 318, 140)
    drawing.card(322, 62, 216, 116, "one training loop", "micro-batches, loss, backward,",
                 "clip, step", "knows no engine by name", kind="work")  # fmt: skip
    engines = ("one process", "DDP", "FSDP2, hybrid sharding", "DeepSpeed ZeRO-1, 2, 3")
    for index, engine in enumerate(engines):
        y = 24 + 50 * index
        drawing.card(630, y, 210, 38, engine, kind="talk")
        drawing.arrow(538, 120, 626, y + 19)
    drawing.text(735, 228, "1 to many ranks, CPU or GPU", kind="soft", size=12)
    promises = (
        ("before", "toolkit estimate", "memory of every strategy"),
        ("proof", "toolkit verify", "the same update, to rounding"),
        ("after", "toolkit checkpoint", "resume under any strategy"),
    )
    for index, (when, verb, what) in enumerate(promises):
        x = 20 + 280 * index
        drawing.card(x, 246, 260, 64, f"{when}: {verb}", what, kind="hold")
    return drawing.svg()


def step() -> str:
    """Return one optimizer step as ranks by micro-steps, and where its loss is divided."""
    drawing = Drawing(860, 300, _TITLES["step"])
    about = "global batch: a function of seed and step, whatever the number of ranks"
    drawing.text(20, 34, about, kind="soft", size=13, at="start")
    for rank in range(2):
        y = 66 + 74 * rank
        drawing.text(20, y + 33, f"rank {rank}", size=13, at="start")
        for micro_step in range(3):
            x = 86 + 142 * micro_step
            drawing.card(x, y, 128, 56, f"micro-step {micro_step + 1}",
                         "forward, backward", kind="work")  # fmt: skip
    drawing.arrow(504, 94, 538, 126)
    drawing.arrow(504, 168, 538, 140)
    lines = ("sum over all valid", "targets / their number")
    drawing.card(542, 98, 150, 70, "gradient", *lines, kind="talk")
    drawing.arrow(692, 133, 712, 133)
    lines = ("clip, optimizer", "same on all ranks")
    drawing.card(716, 98, 126, 70, "update", *lines, kind="hold")
    drawing.box(78, 56, 144, 158, "line")
    drawing.text(150, 234, "one wave: a micro-step on all ranks", kind="soft", size=12)
    drawing.text(20, 276, "tokens per step = sequences x tokens per sequence x micro-steps x ranks",
                 kind="soft", size=13, at="start")  # fmt: skip
    return drawing.svg()


_MODES = {
    "replicated": (("reduced once per step",), (0, 0, 0, 46), 26),
    "sharded": (("reduced at every micro-step",), (46, 46, 46, 46), 10),
    "deferred": (("reduced in the shard group,", "averaged once per step"), (24, 24, 24, 46), 10),
}


def modes() -> str:
    """Return the three accumulation modes as timelines of four micro-steps."""
    drawing = Drawing(860, 330, _TITLES["modes"])
    for row, (mode, (about, reductions, held)) in enumerate(_MODES.items()):
        y = 32 + 88 * row
        drawing.text(20, y + 14, mode, size=15, at="start")
        for line, words in enumerate(about):
            drawing.text(20, y + 32 + 15 * line, words, kind="soft", size=12, at="start")
        x = 240
        for reduction in reductions:
            drawing.box(x, y, 84, 24, "work")
            x += 88
            if reduction:
                drawing.box(x, y, reduction, 24, "talk")
                x += reduction + 4
        drawing.box(240, y + 30, x - 244, held, "hold")
        drawing.box(x, y, 34, 24, "box")
    legend = (
        ("work", "forward and backward"),
        ("talk", "gradients communicated"),
        ("hold", "gradients held"),
        ("box", "optimizer step"),
    )
    for index, (kind, words) in enumerate(legend):
        drawing.box(20 + 210 * index, 298, 22, 14, kind)
        drawing.text(50 + 210 * index, 310, words, kind="soft", size=12, at="start")
    return drawing.svg()
