// What a rank sends of a payload. A ring of n ranks passes (n − 1)/n of it on, twice for an all-reduce
// (nccl-tests, doc/PERFORMANCE.md). Gloo makes a reduce-scatter of an all-reduce; its bytes were
// counted on the network interface: all-reduce and reduce-scatter 2 (n − 1)/n, the others (n − 1)/n.
const ROUNDS = {
  gloo: { all_reduce: 2, reduce_scatter: 2, all_gather: 1, all_to_all: 1 },
  nccl: { all_reduce: 2, reduce_scatter: 1, all_gather: 1, all_to_all: 1 },
};

/** Bytes that a rank sends, on average; null where it is not known, as of a broadcast. */
function sent(backend, kind, payload, ranks) {
  const rounds = ROUNDS[backend][kind];
  return rounds == null ? null : Math.round((rounds * (ranks - 1) * payload) / ranks);
}

/** The same as a formula in figures. */
function sentWorking(backend, kind, payload, ranks) {
  const rounds = ROUNDS[backend][kind];
  if (rounds == null) return "not known of this kind";
  return `${rounds === 2 ? "2 · " : ""}${ranks - 1}/${ranks} · ${payload.toLocaleString("en")} B = ${sent(backend, kind, payload, ranks).toLocaleString("en")} B`;
}
