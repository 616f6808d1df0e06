// The working of a phase in figures that can be checked by hand, for one weight at a time.
const REDUCES = ["all_reduce", "reduce_scatter"];
const isNumber = (call) => call[2] <= 1;
const reduces = (frame) => frame.ranks.some((rank) => rank.calls.some((call) => REDUCES.includes(call[0]) && !isNumber(call)));

const minus = (a, b) => `(${num(a)} − ${b < 0 ? `(${num(b)})` : num(b)})`;
const plus = (values) => values.map((value, index) => index && value < 0 ? `− ${num(-value)}` : `${index ? "+ " : ""}${num(value)}`).join(" ");

/** The targets that a batch's losses are divided by. */
function targets(recording) {
  const { case: asked, batches: [batch] } = recording;
  if (asked.mean_of_means) return asked.gpus * asked.grad_accum_steps;
  return sum(batch.samples.flat().map((micro) => micro.count));
}

/** What a micro-step's (w − x) are multiplied by to be its rank's gradient. */
function factor(recording, micro) {
  const { case: asked } = recording;
  return [asked.gpus, targets(recording), asked.mean_of_means ? micro.count : 1];
}

function working(recording, view, weight) {
  const lines = { read: workRead, forward: workForward, backward: workBackward, reduce: workReduce, update: workUpdate };
  return lines[view.phase](recording, view, weight);
}

function workRead(recording, view) {
  return view.batch.samples.map((micros, rank) =>
    `rank ${rank} reads ${micros.map((micro) => `${micro.count} in micro-step`).map((text, index) => `${text} ${index + 1}`).join(", ")}`);
}

function workForward(recording, view) {
  return view.frame.ranks.map((rank, index) => {
    const micro = view.batch.samples[index][view.frame.micro_step];
    const parts = micro.values.map((x, at) =>
      `½ · [${x.map((value, i) => `${minus(rank.seen[i], value)}²`).join(" + ")}] = ${num(rank.losses[at])}`);
    const listed = parts.length ? parts.join("; ") : `${micro.count} losses, sum ${num(sum(rank.losses))}`;
    return `rank ${index}: ${listed}`;
  });
}

function workBackward(recording, view, weight) {
  return view.frame.ranks.map((rank, index) => {
    const micro = view.batch.samples[index][view.frame.micro_step];
    const [gpus, count, own] = factor(recording, micro);
    const scale = own === 1 ? `${gpus}/${count}` : `${gpus}/${count} · 1/${own}`;
    const w = forwardOf(recording, view).ranks[index].seen[weight];
    const inside = micro.values.length
      ? micro.values.map((x) => minus(w, x[weight])).join(" + ")
      : `${micro.count} · ${num(w)} − ${micro.sum[weight] < 0 ? `(${num(micro.sum[weight])})` : num(micro.sum[weight])}`;
    return `rank ${index}: ${scale} · [${inside}] = ${num(rank.own[weight])}`;
  });
}

const forwardOf = (recording, view) =>
  view.batch.frames.find((frame) => frame.phase === "forward" && frame.micro_step === view.frame.micro_step);

/** Each rank's gradients of its micro-steps since what was reduced before, and what that was. */
function sinceReduction(view) {
  const earlier = view.batch.frames.filter((frame) => frame.phase === "backward" && frame.micro_step < view.frame.micro_step);
  const last = earlier.filter(reduces).pop();
  const open = [...earlier.filter((frame) => !last || frame.micro_step > last.micro_step), view.frame];
  return { last, sums: (weight) => view.frame.ranks.map((_, rank) => sum(open.map((frame) => frame.ranks[rank].own[weight]))) };
}

const held = (rank, weight) => rank.gradient.map((part) => part[weight]).filter((value) => value != null).pop();
const owner = (frame, weight) => frame.ranks.findIndex((rank) => held(rank, weight) != null);

function workReduce(recording, view, weight) {
  const { last, sums } = sinceReduction(view);
  const own = sums(weight);
  const at = owner(view.frame, weight);
  const found = at < 0 ? null : held(view.frame.ranks[at], weight);
  const mean = sum(own) / own.length;
  const before = last ? held(last.ranks[at], weight) : 0;
  const lines = own.map((value, rank) => `rank ${rank} brings ${num(value)}`);
  const equation = `(${plus(own)}) / ${own.length} = ${num(mean)}`;
  if (found != null && Math.abs(mean + before - found) < 1e-5) {
    lines.push(before ? `${equation}; with ${num(before)} from before: ${num(found)}` : equation);
  } else if (found != null) {
    lines.push(`rank ${at} now holds ${num(found)}; the other replica groups' part is not in it yet`);
  }
  return lines;
}

function workUpdate(recording, view, weight) {
  const read = view.batch.frames[0];
  const before = view.batch.frames.filter((frame) => frame.phase === "backward").pop();
  return view.frame.ranks.map((rank, index) => {
    const after = (rank.master || rank.weights)[weight];
    if (after == null) return null;
    const old = (read.ranks[index].master || read.ranks[index].weights)[weight];
    const gradient = held(before.ranks[index], weight);
    if (gradient == null) return `rank ${index}: ${num(old)} becomes ${num(after)}`;
    return `rank ${index}: ${num(old)} − ${recording.case.lr} · ${gradient < 0 ? `(${num(gradient)})` : num(gradient)} = ${num(after)}`;
  }).filter(Boolean);
}
