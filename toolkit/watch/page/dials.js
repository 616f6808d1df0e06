// The dials of a batch: what more tokens per update cost in memory, hardware or time.
const LETTERS = ["P", "G", "O", "A", "L", "C", "x"];
const dials = { pair: null, sequences: 1, gpus: 1, micro_steps: 1 };
const NAMES = { sequences: "sequences per GPU", gpus: "GPUs", micro_steps: "micro-steps" };
const PRICE = { sequences: "cost activation memory", gpus: "cost hardware", micro_steps: "cost time" };

const valueOf = (name) => DATA.dials[name][dials[name]];
const cost = (sequences, gpus, steps) => DATA.dials.rows[dials.pair][`${sequences} ${gpus} ${steps}`];

function drawDials() {
  const { rows, seq_len: length } = DATA.dials;
  const [sequences, gpus, steps] = ["sequences", "gpus", "micro_steps"].map(valueOf);
  const slider = (name) => el("label", {}, `${NAMES[name]}: ${valueOf(name)} `, el("span.soft", {}, PRICE[name]),
    el("input", { type: "range", min: 0, max: DATA.dials[name].length - 1, value: dials[name], "data-key": name, "aria-valuetext": String(valueOf(name)), oninput: (event) => { dials[name] = Number(event.target.value); drawDials(); } }));
  const tokens = sequences * length * steps * gpus;
  fill(dials.node,
    choices("engine", "pair", Object.keys(rows).map((pair) => [pair, pair]), dials.pair, (pair) => { dials.pair = pair; drawDials(); }),
    el("div.dials", {}, ["sequences", "gpus", "micro_steps"].map(slider)),
    el("p", { id: "tokens" }, el("strong", {}, `${tokens.toLocaleString("en")} tokens per update`), ` = ${sequences} × ${length.toLocaleString("en")} × ${steps} × ${gpus}. Every way of cutting them:`),
    el("div.scroll", {}, el("table.left", {}, el("thead", {}, el("tr", {}, ["sequences", "GPUs", "micro-steps", "peak of a GPU", "", "payload of a rank", "computing"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, sameTokens(tokens / length).map(([s, g, m]) => costRow(s, g, m, s === sequences && g === gpus && m === steps))))),
    el("p.small.soft.legend", {}, LETTERS.map((part, index) => el("span", {}, letter(part), ["parameters", "gradients", "optimizer", "activations", "loss", "communication", "other"][index]))));
}

function sameTokens(sequencesPerStep) {
  return DATA.dials.sequences.flatMap((s) => DATA.dials.gpus.flatMap((g) => DATA.dials.micro_steps
    .filter((m) => s * g * m === sequencesPerStep && cost(s, g, m)).map((m) => [s, g, m])));
}

function costRow(sequences, gpus, steps, isNow) {
  const [parts, payload, flops] = cost(sequences, gpus, steps);
  const most = Math.max(...Object.values(DATA.dials.rows[dials.pair]).map((other) => sum(other[0])));
  const time = flops / (DATA.dials.flops_per_s * DATA.dials.utilisation);
  const bar = el("div.bar", { "aria-hidden": "true" }, parts.map((size, index) => {
    const piece = el(`i.${LETTERS[index]}`);
    piece.style.width = `${(100 * size) / most}%`;
    return piece;
  }));
  return el(isNow ? "tr.now" : "tr", {}, [sequences, gpus, steps, bytes(sum(parts))].map((value) => el("td", {}, String(value))),
    el("td", {}, bar), el("td", {}, bytes(payload)), el("td", {}, `${Number((1000 * time).toPrecision(3))} ms`));
}

function buildDials(page) {
  dials.pair = Object.keys(DATA.dials.rows)[0];
  dials.node = el("div");
  page.append(el("section.card", { "aria-label": "dials" }, el("h2", {}, "Your own batch: three dials"),
    el("p.small.soft", {}, `Estimated, not measured: GPT-2 of 124M parameters in bf16 with AdamW, ${DATA.dials.seq_len} tokens a sequence. Memory and payload are read off the program of a step; computing is the arithmetic at ${100 * DATA.dials.utilisation} % (an assumption) of the peak of one ${DATA.dials.device}, communication not included.`),
    dials.node));
  drawDials();
}
