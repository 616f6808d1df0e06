// A recorded run: one step of it at a time, all ranks below one another.
const RUN = DATA.run;
const shown = { step: 0, phase: "all", rank: 0, call: null };
const KINDS = { all_reduce: "all-reduce", reduce_scatter: "reduce-scatter", all_gather: "all-gather", all_to_all: "all-to-all", other: "other" };
const PHASE_LETTERS = { forward: "A", backward: "G", optimizer: "O" };
const stepNow = () => RUN.steps[shown.step];
const rankNow = () => stepNow().ranks[shown.rank];
const ms = (microseconds) => `${(microseconds / 1000).toFixed(microseconds < 10000 ? 2 : 1)} ms`;
const whole = (count) => count.toLocaleString("en");
const carriesNumber = (shape) => shape[1] <= 1;
const payloadOf = (shape) => shape[1] * shape[2];

/** "forward 2" of the phases, in which each forward begins a micro-step. */
function phaseName(step, index) {
  if (index < 0) return "before the first phase";
  const name = step.phases[index];
  if (name === "optimizer") return name;
  return `${name} ${step.phases.slice(0, index + 1).filter((other) => other === "forward").length}`;
}

/** Calls, payload, exposed time and bytes sent of one kind on a rank, numbers left aside. */
function traffic(step, rank, kind) {
  const calls = rank.calls.map((call) => [step.shapes[call[0]], call]).filter(([shape]) => shape[0] === kind && !carriesNumber(shape));
  return {
    calls: calls.length,
    bytes: sum(calls.map(([shape]) => payloadOf(shape))),
    sent: sum(calls.map(([shape]) => sent(RUN.backend, kind, payloadOf(shape), shape[3].length))),
    exposed: sum(calls.map(([, call]) => call[4])),
    hidden: sum(calls.map(([, call]) => Math.max(0, call[3] - call[2] - call[4]))),
  };
}

/** The times between which the timeline is drawn: of a phase, from the first rank in to the last out. */
function span(step) {
  const from = shown.phase === "all" ? 0 : Number(shown.phase) + 1;
  const to = shown.phase === "all" ? step.phases.length + 1 : from + 1;
  return [Math.min(...step.ranks.map((rank) => rank.marks[from])), Math.max(...step.ranks.map((rank) => rank.marks[to]))];
}

function bar(name, from, to, [start, end], attributes) {
  const [a, b] = [Math.max(from, start), Math.min(to, end)];
  if (b < a) return null;
  const percent = (value) => `${((100 * value) / (end - start)).toFixed(3)}%`;
  return svg("rect", { class: name, x: percent(a - start), width: percent(b - a), ...attributes });
}

/** A call's time, and within it, at its end, what was waited for. */
function callBars(step, rank, number, index, range) {
  const [shape, , issued, over, waited] = rank.calls[index];
  const [kind] = step.shapes[shape];
  const chosen = shown.call != null && shown.rank === number && shown.call === index;
  const shared = { y: 15, height: 12, "data-rank": number, "data-call": index };
  const end = Math.max(over, issued);
  return [
    bar(chosen ? "call chosen" : "call", issued, end, range, shared),
    bar(`exposed ${kind}`, Math.max(issued, end - waited), end, range, { ...shared, "data-exposed": waited }),
  ];
}

function drawTimeline() {
  const step = stepNow();
  const range = span(step);
  const phases = [["all", "the whole update"], ...step.phases.map((_, index) => [String(index), phaseName(step, index)])];
  const rows = step.ranks.map((rank, number) => {
    const bars = step.phases.map((name, index) => bar(PHASE_LETTERS[name], rank.marks[index + 1], rank.marks[index + 2], range, { y: 2, height: 10 }));
    const calls = rank.calls.flatMap((_, index) => callBars(step, rank, number, index, range));
    const exposed = sum(rank.calls.map((call) => call[4]));
    return el("div.lane", {}, el("button", { type: "button", "data-key": `rank ${number}`, "aria-pressed": String(shown.rank === number), onclick: () => select({ rank: number, call: null }) }, `rank ${number}`),
      svg("svg", { class: "time", role: "img", "aria-label": `rank ${number}: ${rank.calls.length} collectives, exposed for ${ms(exposed)}` }, ...[...bars, ...calls].filter(Boolean)));
  });
  fill(shown.timeline,
    choices("show", "phase", phases, shown.phase, (phase) => { shown.phase = phase; drawTimeline(); }),
    el("p.small.soft.legend", {}, el("span", {}, letter("A"), "forward"), el("span", {}, letter("G"), "backward"), el("span", {}, letter("O"), "optimizer"), el("span", {}, letter("C"), "collective: hatched hidden, solid exposed")),
    el("div.lanes", { onclick: (event) => pick(event.target) }, rows),
    el("p.small.soft", {}, `${ms(range[0])} to ${ms(range[1])} of each rank's own update. Keys: ← → collectives of a rank, ↑ ↓ ranks.`));
}

function pick(target) {
  if (target.dataset.call != null) select({ rank: Number(target.dataset.rank), call: Number(target.dataset.call) });
}

function select(change) {
  Object.assign(shown, change);
  drawTimeline();
  drawDetail();
  drawTraffic();
  drawMemory();
}

function drawDetail() {
  const step = stepNow();
  const call = shown.call == null ? null : rankNow().calls[shown.call];
  if (!call) {
    fill(shown.detail, el("p.soft", {}, "Choose a collective: click on its block, or use the arrow keys."));
    return;
  }
  const [kind, elements, width, group, what] = step.shapes[call[0]];
  const payload = elements * width;
  const rows = [
    ["collective", `${KINDS[kind]}, call ${shown.call + 1} of rank ${shown.rank}, in ${phaseName(step, call[1])}`],
    ["elements", `${whole(elements)} = ${what}`],
    ["payload", `${whole(elements)} × ${width} B = ${whole(payload)} B`],
    ["sent by a rank", sentWorking(RUN.backend, kind, payload, group.length)],
    ["group", group.length === RUN.ranks ? `all ${RUN.ranks} ranks` : `ranks ${group.join(", ")}`],
    ["measured", `issued at ${ms(call[2])}, over at ${ms(call[3])}, of which exposed ${ms(call[4])}`],
  ];
  fill(shown.detail, el("table.left", {}, el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value))))));
}

function drawTraffic() {
  const step = stepNow();
  const rows = Object.keys(KINDS).map((kind) => [kind, traffic(step, rankNow(), kind), RUN.predicted.traffic[kind]]).filter(([, found, predicted]) => found.calls || predicted[0]);
  const head = ["kind", "calls", "predicted", "payload", "predicted", `sent over ${RUN.backend}`, "exposed", "hidden"];
  fill(shown.traffic, el("div.scroll", {}, el("table.left", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.map(([kind, found, predicted]) => el("tr", { "data-kind": kind }, [KINDS[kind], found.calls, predicted[0], `${whole(found.bytes)} B`, `${whole(predicted[1])} B`, `${whole(found.sent)} B`, ms(found.exposed), ms(found.hidden)].map((value) => el("td", {}, String(value)))))))),
  rows.length ? null : el("p.soft", {}, "This run communicates no tensors."),
  el("p.small.soft", {}, `Of rank ${shown.rank}, counted as they were issued; besides, ${rankNow().calls.filter((call) => carriesNumber(step.shapes[call[0]])).length} collectives of single numbers. Predicted by the step's program.`));
}

/** Bytes by part at each moment: what is held, and what lies above the update's start. */
function measured(rank) {
  return rank.marks.map((_, index) => {
    const total = rank.allocated[index];
    const rest = total == null ? null : total - rank.allocated[0] - (rank.gradients[index] - rank.gradients[0]);
    return [rank.parameters, rank.gradients[index], rank.optimizer, rest];
  });
}

function predictedMemory() {
  const at = (held, part) => held[RUN.predicted.parts.indexOf(part)];
  const all = RUN.predicted.memory;
  return all.map((held) => [at(all[0], "parameters"), at(held, "gradients"), at(held, "optimizer"), at(held, "activations") + at(held, "loss") + at(held, "parameters") - at(all[0], "parameters")]);
}

function drawMemory() {
  const step = stepNow();
  const [found, expected] = [measured(rankNow()), predictedMemory()];
  const most = Math.max(...[...found, ...expected].map((parts) => sum(parts.map((size) => Math.max(0, size || 0)))));
  const names = ["start", ...step.phases.map((_, index) => phaseName(step, index)), "end"];
  const stack = (parts) => el("div.bar", { "aria-hidden": "true" }, parts.map((size, index) => {
    const piece = el(`i.${["P", "G", "O", "A"][index]}`);
    piece.style.width = `${(100 * Math.max(0, size || 0)) / most}%`;
    return piece;
  }));
  const row = (name, kind, parts) => el("tr", { "data-at": name, "data-kind": kind }, el("th", { scope: "row" }, kind === "measured" ? name : ""), el("td.soft", {}, kind), el("td.wide", {}, stack(parts)), parts.map((size) => el("td", {}, size == null ? "not known" : bytes(Math.max(0, size)))));
  const head = ["at the beginning of", "", "", ...["P", "G", "O", "A"].map((part, index) => [letter(part), ["parameters", "gradients", "optimizer", "the rest"][index]])];
  fill(shown.memory, el("div.scroll", {}, el("table.left", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, names.flatMap((name, index) => [row(name, "measured", found[index]), expected[index] ? row(name, "predicted", expected[index]) : null])))),
  el("p.small.soft", {}, `Rank ${shown.rank}. The rest is what was allocated beyond the update's start: activations, the loss, what is gathered. Predicted of activations, loss and gathered parameters.`));
}

function drawLoss() {
  const step = stepNow();
  const tokens = sum(step.ranks.flatMap((rank) => rank.losses.map(([count]) => count)));
  // Each micro-step's share is rounded to fp32, as the run rounds it; shares are added up in fp64.
  const share = ([, total]) => Math.fround(total / tokens);
  const loss = sum(step.ranks.map((rank) => sum(rank.losses.map(share))));
  const means = step.ranks.flatMap((rank) => rank.losses.map(([count, total]) => total / count));
  const head = ["", ...step.ranks[0].losses.map((_, index) => `micro-step ${index + 1}: tokens, sum of losses`)];
  fill(shown.loss,
    el("p", { id: "weighted" }, "sum of all losses / targets of the step = ", el("strong", {}, num(loss)), ` (${whole(tokens)} targets); metrics.jsonl has ${num(step.loss)}. The mean of the ${means.length} micro-steps' means is ${num(sum(means) / means.length)}.`),
    el("div.scroll.tall", {}, el("table.left", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, step.ranks.map((rank, number) => el("tr", {}, el("th", { scope: "row" }, `rank ${number}`), rank.losses.map(([count, total]) => el("td", {}, `${whole(count)}, ${num(total)}`))))))));
}

function drawRunFigures() {
  const step = stepNow();
  const rank = rankNow();
  const figure = (id, label, value, note) => el("div.figure", { id }, el("span.soft.small", {}, label), el("b", {}, value), el("span.soft.small", {}, note));
  const seconds = RUN.predicted.seconds;
  const update = rank.marks[rank.marks.length - 1];
  const held = Math.max(...step.ranks.flatMap((other) => other.gradients));
  fill(shown.figures,
    figure("step-loss", "loss", step.loss.toFixed(4), "metrics.jsonl"),
    figure("step-s", "step", `${(1000 * step.step_s).toFixed(1)} ms`, `metrics.jsonl; ${ms(update)} of it the update of rank ${shown.rank}`),
    figure("predicted-s", "predicted step", seconds ? `${(1000 * seconds[1]).toFixed(1)} ms` : "none", seconds ? `${(1000 * seconds[0]).toFixed(1)} to ${(1000 * seconds[2]).toFixed(1)} ms; exposed ${(1000 * RUN.predicted.exposed).toFixed(1)} ms` : RUN.predicted.why_not),
    figure("held-most", "gradients held, at most", bytes(held), "where a phase begins, of any rank"),
    figure("peak", "peak memory of a rank", step.peak_memory_bytes == null ? "not measured" : bytes(step.peak_memory_bytes), "metrics.jsonl"));
}

function drawRun() {
  fill(shown.steps, choices("step", "step", RUN.steps.map((step, index) => [String(index), String(step.step)]), String(shown.step), (index) => { Object.assign(shown, { step: Number(index), call: null, phase: "all" }); drawRun(); }));
  drawRunFigures();
  drawTimeline();
  drawDetail();
  drawTraffic();
  drawMemory();
  drawLoss();
}

function onRunKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select")) return;
  const last = rankNow().calls.length - 1;
  const at = shown.call == null ? -1 : shown.call;
  const moves = {
    ArrowRight: { call: Math.min(last, at + 1) }, ArrowLeft: { call: Math.max(0, at - 1) },
    ArrowDown: { rank: Math.min(RUN.ranks - 1, shown.rank + 1) }, ArrowUp: { rank: Math.max(0, shown.rank - 1) },
    Home: { call: 0 }, End: { call: last },
  };
  const move = moves[event.key];
  if (!move || last < 0) return;
  event.preventDefault();
  select(move);
}

function buildRun(page) {
  const part = () => el("div");
  Object.assign(shown, { steps: part(), figures: el("div.figures"), timeline: part(), detail: el("div", { "aria-live": "polite", id: "detail" }), traffic: part(), memory: part(), loss: part() });
  const letters = Object.entries(RUN.symbols).map(([name, value]) => `${name} = ${whole(value)}`).join(", ");
  page.append(
    el("h1", {}, `Run ${RUN.name}`),
    el("p.soft", {}, `${RUN.strategy}, ${RUN.accumulation}, ${RUN.ranks} ranks over ${RUN.backend} on ${RUN.device}; ${whole(RUN.parameters)} parameters (${letters}). Recorded while it trained.`),
    el("section.switches", { "aria-label": "steps" }, shown.steps),
    el("section", {}, shown.figures),
    el("section.card", {}, el("h2", {}, "Timeline of each rank"), shown.timeline),
    el("section.card", {}, el("h2", {}, "The formula behind a block"), shown.detail),
    el("section.card", {}, el("h2", {}, "What a rank communicates"), shown.traffic),
    el("section.card", {}, el("h2", {}, "Memory over the step"), shown.memory),
    el("section.card", {}, el("h2", {}, "The loss, as it was weighted"), shown.loss));
  document.addEventListener("keydown", onRunKey);
  drawRun();
}
