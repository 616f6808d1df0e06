// The lesson: one recording at a time, walked through phase by phase.
const TITLES = {
  read: "Read", forward: "Forward", backward: "Backward", reduce: "Reduce", update: "Update",
};
const SAYS = {
  read: "Each rank reads its own samples of the global batch. All ranks have the same weights, each what its engine lets it keep.",
  forward: "Each rank computes the loss ½|w − x|² of its samples. A rank that keeps a slice gathers the whole weights first.",
  backward: "Each rank computes its own gradient, w − x summed over its samples, as its share of the mean over the whole batch.",
  reduce: "The ranks' gradients are averaged. What each rank then holds is its engine's to decide: all of the mean, or the slice that it updates.",
  update: "Every weight is updated where it is held: w := w − 0.1 g. Slices that belong to whole copies are gathered afterwards.",
};
const SCENARIOS = { lesson: "four weights", weighting: "tokens weigh alike?", cut: "one batch, two cuts" };

const lesson = { at: 0, recording: DATA.start || 0, weight: 0, film: null };
const recordings = DATA.recordings || [];
const current = () => recordings[lesson.recording];

/** Every phase of every batch that was recorded in full; a backward pass that reduces is two. */
function viewsOf(recording) {
  return recording.batches.flatMap((batch, number) => batch.frames.flatMap((frame) => {
    const view = { batch, number, frame, phase: frame.phase };
    return frame.phase === "backward" && reduces(frame) ? [view, { ...view, phase: "reduce" }] : [view];
  }));
}

function go(at) {
  lesson.at = Math.max(0, Math.min(viewsOf(current()).length - 1, at));
  drawStep();
}

function film(on) {
  clearInterval(lesson.film);
  lesson.film = on ? setInterval(() => {
    if (lesson.at + 1 >= viewsOf(current()).length) film(false);
    else go(lesson.at + 1);
  }, 1400) : null;
  drawStep();
}

function choose(index) {
  // The same phase of the other recording, where it has one.
  const { number, phase, frame } = viewsOf(current())[lesson.at];
  lesson.recording = index;
  lesson.weight = Math.min(lesson.weight, current().case.weights - 1);
  const views = viewsOf(current());
  const same = views.findIndex((view) => view.number === number && view.phase === phase && view.frame.micro_step === frame.micro_step);
  lesson.at = Math.max(0, same);
  drawAll();
}

/** Take the recording that has `change`, and otherwise as much of the current one as there is. */
function turn(change) {
  const wanted = { ...current().case, ...change };
  const keys = ["scenario", "strategy", "averages", "accumulation", "mean_of_means", "gpus"];
  const fits = recordings.filter(({ case: c }) => Object.entries(change).every(([key, value]) => c[key] === value));
  const score = ({ case: c }) => sum(keys.map((key, index) => (c[key] === wanted[key] ? 2 ** (keys.length - index) : 0)));
  fits.sort((a, b) => score(b) - score(a));
  if (fits.length) choose(recordings.indexOf(fits[0]));
}

function drawSwitches() {
  const now = current().case;
  const of = (test) => recordings.map((recording) => recording.case).filter(test);
  const distinct = (key, test) => [...new Set(of(test).map((c) => c[key]))];
  const here = (c) => c.scenario === now.scenario;
  const rows = [choices("problem", "scenario", distinct("scenario", () => true).map((name) => [name, SCENARIOS[name]]), now.scenario, (scenario) => turn({ scenario }))];
  if (now.scenario === "lesson") {
    const averages = (value) => of(here).some((c) => c.averages === value);
    const modes = (name) => of(here).some((c) => c.accumulation === name && c.strategy === now.strategy && c.averages === now.averages);
    rows.push(
      choices("engine", "strategy", distinct("strategy", here).map((name) => [name, name]), now.strategy, (strategy) => turn({ scenario: "lesson", strategy })),
      choices("accumulation", "accumulation", distinct("accumulation", here).map((name) => [name, name, modes(name)]), now.accumulation, (accumulation) => turn({ scenario: "lesson", accumulation, strategy: now.strategy })),
      choices("averaging", "averages", [["on", "on", averages(true)], ["off", "off", averages(false)]], now.averages ? "on" : "off", (value) => turn({ scenario: "lesson", averages: value === "on" })),
    );
  } else if (now.scenario === "weighting") {
    rows.push(choices("the loss is", "weighing", [["tokens", "the mean over tokens"], ["means", "the mean of means"]], now.mean_of_means ? "means" : "tokens", (value) => turn({ scenario: "weighting", mean_of_means: value === "means" })));
  } else {
    rows.push(choices("cut", "gpus", distinct("gpus", here).map((gpus) => [String(gpus), `${gpus} GPU${gpus > 1 ? "s" : ""} × ${now.samples / gpus} samples`]), String(now.gpus), (gpus) => turn({ scenario: "cut", gpus: Number(gpus) })));
  }
  fill(lesson.switches, ...rows);
}

function nameOf(view) {
  const micro = view.frame.micro_step;
  const counted = current().case.grad_accum_steps > 1 && ["forward", "backward", "reduce"].includes(view.phase);
  return `${TITLES[view.phase]}${counted ? ` ${micro + 1}` : ""}`;
}

function drawControls(views, view) {
  const button = (key, label, text, onclick, extra = {}) => el("button", { type: "button", "data-key": key, "aria-label": label, onclick, ...extra }, text);
  fill(lesson.controls,
    el("div.buttons", {},
      button("back", "previous phase", "◀", () => go(lesson.at - 1), { disabled: lesson.at === 0 }),
      button("next", "next phase", "Next ▶", () => go(lesson.at + 1), { disabled: lesson.at + 1 === views.length }),
      button("film", lesson.film ? "stop the film" : "play the film", lesson.film ? "Stop" : "Film", () => film(!lesson.film), { "aria-pressed": String(Boolean(lesson.film)) }),
      el("span.soft.small", {}, `batch ${view.number + 1}, phase ${lesson.at + 1} of ${views.length}. Keys: ← → Home End, space for the film`)),
    el("div.track", { role: "group", "aria-label": "phases" }, views.map((other, index) => other.number === view.number
      ? button(`phase ${index}`, null, nameOf(other), () => go(index), index === lesson.at ? { "aria-current": "step" } : {})
      : null)));
  fill(lesson.phase, el("p", {}, el("strong", {}, `${nameOf(view)}. `), SAYS[view.phase]));
}

function drawStrip(view) {
  const now = ["forward", "backward", "reduce"].includes(view.phase) ? view.frame.micro_step : -1;
  const items = view.batch.samples.flatMap((micros, rank) => micros.map((micro, index) =>
    el(index === now ? "li.now" : "li", {}, el("b", {}, `rank ${rank}`), ` micro-step ${index + 1}: `,
      micro.values.length && micro.values.length <= 4
        ? micro.values.map((x) => `(${x.map(num).join(", ")})`).join(" ")
        : `${micro.count} ${current().case.scenario === "weighting" ? `tokens, each with loss ${micro.count === 100 ? "2" : "1"}` : "samples"}`)));
  fill(lesson.strip, ...items);
}

function row(part, label, values, kind, before) {
  const cells = values.map((value, index) => {
    const changed = before && value != null && before[index] !== value;
    const classes = value == null ? ["away"] : [kind, part, ...(changed ? ["changed"] : [])];
    return el(["td", ...classes].join("."), { "data-value": value, "aria-label": value == null ? "not here" : null }, num(value));
  });
  return el("tr", { "data-part": label }, el("th", { scope: "row" }, letter(part), label), cells);
}

/** The state that a view shows: a backward pass that is about to be reduced holds what was there before. */
function stateOf(view, rank) {
  const frames = view.batch.frames;
  const pending = view.phase === "backward" && reduces(view.frame);
  const frame = pending ? frames[frames.indexOf(view.frame) - 1] : view.frame;
  return frame.ranks[rank];
}

function drawRanks(views, view) {
  const { weights } = current().case;
  const names = () => Array.from({ length: weights }, (_, index) => el("th", { scope: "col" }, `w${index + 1}`));
  const none = Array(weights).fill(null);
  const previous = views[lesson.at - 1];
  const panels = view.frame.ranks.map((found, rank) => {
    const state = stateOf(view, rank);
    const earlier = previous && previous.number === view.number ? stateOf(previous, rank) : null;
    const whole = view.phase === "forward" ? found.seen : view.phase === "backward" ? forwardOf(current(), view).ranks[rank].seen : null;
    const gathers = whole && state.weights.some((value) => value == null);
    const gradient = state.gradient.length ? state.gradient[state.gradient.length - 1] : none;
    return el("section.card.rank", { "aria-label": `rank ${rank}` },
      el("h3", {}, `rank ${rank}`, el("span.soft.small", {}, `gradients ${bytes(state.gradient_bytes)}`)),
      el("div.scroll", {}, el("table", {},
        el("thead", {}, el("tr", {}, el("th", {}), names())),
        el("tbody", {},
          gathers ? row("P", "gathered", whole, "gathered") : null,
          row("P", "weights", state.weights, "here", earlier && earlier.weights),
          view.phase === "backward" ? row("G", "own", found.own, "here") : null,
          row("G", "gradient", gradient, "here"),
          state.master ? row("O", "master", state.master, "here", earlier && earlier.master) : null))));
  });
  fill(lesson.ranks, ...panels);
}

function callsSoFar(views) {
  const seen = views.slice(0, lesson.at + 1).filter((view, index, all) =>
    !(view.phase === "backward" && reduces(view.frame) && all[index + 1] === undefined));
  const frames = [...new Set(seen.map((view) => view.frame))];
  return frames.flatMap((frame) => frame.ranks[0].calls);
}

function drawFigures(views, view) {
  const calls = callsSoFar(views);
  const payload = sum(calls.filter((call) => !isNumber(call)).map((call) => call[1]));
  const small = sum(calls.filter(isNumber).map((call) => call[1]));
  const drift = current().drift.length
    ? (view.phase === "update" ? current().drift[view.number] : view.number ? current().drift[view.number - 1] : 0)
    : null;
  const figure = (id, label, value, note) => el("div.figure", { id }, el("span.soft.small", {}, label), el("b", {}, value), el("span.soft.small", {}, note));
  fill(lesson.figures,
    figure("drift", "drift between copies", drift == null ? "no copies" : drift === 0 ? "0.000" : drift.toFixed(3), drift == null ? "each weight is kept once" : "largest difference of one weight"),
    figure("loss", "loss of this batch", num(view.batch.loss), "the sum of all ranks' shares"),
    figure("held", "gradients held by a rank", bytes(Math.max(...view.frame.ranks.map((_, rank) => stateOf(view, rank).gradient_bytes))), "the most of any rank, now"),
    figure("wire", "payload so far, rank 0", bytes(payload), `counted; besides ${bytes(small)} of single numbers`));
}

function drawCalls(view) {
  const shown = view.phase === "backward" && reduces(view.frame)
    ? view.frame.ranks[0].calls.filter((call) => !REDUCES.includes(call[0]))
    : view.phase === "reduce" ? view.frame.ranks[0].calls.filter((call) => REDUCES.includes(call[0])) : view.frame.ranks[0].calls;
  const rows = shown.filter((call) => call[2] > 0).map(([kind, size, elements, ranks]) => el("tr", {},
    el("td", {}, kind.replace("_", "-")), el("td", {}, `${elements} × ${size / elements} B = ${bytes(size)}`), el("td", {}, ranks.length === current().case.gpus ? "all ranks" : `ranks ${ranks.join(", ")}`),
    el("td.soft", {}, isNumber([kind, size, elements]) ? "a number: targets, or a norm" : kind === "all_gather" ? "weights" : kind === "other" ? "the engine's own" : "gradients")));
  fill(lesson.calls, rows.length
    ? el("div.scroll", {}, el("table.left", {}, el("tbody", {}, rows)))
    : el("p.soft.small", {}, "Rank 0 communicates nothing in this phase."));
}

function drawWorking(view) {
  const { weights } = current().case;
  const needsWeight = ["backward", "reduce", "update"].includes(view.phase);
  fill(lesson.working,
    needsWeight ? choices("weight", "weight", Array.from({ length: weights }, (_, index) => [String(index), `w${index + 1}`]), String(lesson.weight), (value) => { lesson.weight = Number(value); drawStep(); }) : null,
    el("ol.working", {}, working(current(), view, lesson.weight).map((line) => el("li", {}, line))));
}

function drawDrift() {
  const copies = recordings.filter((other) => other.case.scenario === "lesson" && !other.case.averages);
  const lines = [current(), ...copies].filter((other, index, all) => other.drift.length && all.indexOf(other) === index);
  const most = Math.max(1e-9, ...lines.flatMap((line) => line.drift));
  const count = Math.max(1, ...lines.map((line) => line.drift.length));
  const [width, height, left, bottom] = [520, 130, 42, 22];
  const x = (index) => left + (index / count) * (width - left - 8);
  const y = (value) => 8 + (1 - value / most) * (height - bottom - 8);
  const drawn = lines.map((line) => svg("polyline", {
    points: [0, ...line.drift].map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
    fill: "none", stroke: line.case.averages ? "var(--P)" : "var(--L)", "stroke-width": 2,
  }));
  const text = lines.map((line) => `averaging ${line.case.averages ? "on" : "off"}: ${line.drift[line.drift.length - 1].toFixed(3)} after ${line.drift.length} batches`).join("; ") || "no copies to compare";
  fill(lesson.drift, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `drift by batch: ${text}` },
    svg("line", { x1: left, x2: width - 8, y1: y(0), y2: y(0), stroke: "var(--line)" }),
    svg("text", { x: left - 6, y: 14, "text-anchor": "end" }, most < 1e-8 ? "" : most.toFixed(2)),
    svg("text", { x: left - 6, y: y(0) + 4, "text-anchor": "end" }, "0"),
    svg("text", { x: width - 8, y: height - 5, "text-anchor": "end" }, `batch ${count}`), ...drawn),
  el("p.small.soft", {}, text));
}

function drawStep() {
  const views = viewsOf(current());
  const view = views[lesson.at];
  drawControls(views, view);
  drawStrip(view);
  drawRanks(views, view);
  drawFigures(views, view);
  drawCalls(view);
  drawWorking(view);
}

function drawAll() {
  drawSwitches();
  drawStep();
  drawDrift();
}

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target.closest("input, select, textarea")) return;
  const moves = { ArrowLeft: () => go(lesson.at - 1), ArrowRight: () => go(lesson.at + 1), Home: () => go(0), End: () => go(Infinity) };
  if (event.key === " " && !event.target.closest("button, a")) { event.preventDefault(); film(!lesson.film); }
  if (moves[event.key]) { event.preventDefault(); film(false); moves[event.key](); }
}

function buildLesson(page) {
  Object.assign(lesson, {
    switches: el("div.switches", { role: "group", "aria-label": "recordings" }), controls: el("div.controls"),
    phase: el("div.phase", { "aria-live": "polite" }), strip: el("ol.strip", { "aria-label": "the batch" }), ranks: el("div.ranks"),
    figures: el("div.figures"), calls: el("div"), working: el("div"), drift: el("div"),
  });
  page.append(
    el("h1", {}, "Watch data parallelism happen"),
    el("p.soft", {}, "Every number here was recorded in real processes, which trained these weights over gloo with the toolkit's own engines and training step."),
    el("section", { "aria-label": "switches" }, lesson.switches),
    el("section", {}, lesson.controls, lesson.phase, lesson.figures),
    el("section", {}, el("h2", {}, "The batch, and who reads what"), lesson.strip),
    el("section", {}, el("h2", {}, "The ranks, and what each has"), lesson.ranks,
      el("p.small.soft.legend", {}, ["P", "G", "O"].map((part) => el("span", {}, letter(part), { P: "weights", G: "gradients", O: "the optimizer's own copy" }[part])), el("span", {}, "– not here"), el("span", {}, "hatched: gathered for the moment"))),
    el("section.columns", {},
      el("div.card", {}, el("h2", {}, "The working"), lesson.working),
      el("div.card", {}, el("h2", {}, "What rank 0 communicates"), lesson.calls, el("h2", {}, "Drift by batch"), lesson.drift)));
  document.addEventListener("keydown", onKey);
  drawAll();
}
