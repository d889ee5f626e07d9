// What follows a hand is asked one question at a time, and the newest next. What takes longer is
// asked when the hand rests, and dropped if it moves again.
export function following(quickly, slowly) {
  let turn = 0, rest = null, asking = false, next = false, thinking = false, open = true;

  async function quick() {
    asking = true;
    try { await quickly(); } finally {
      asking = false;
      if (next && open) { next = false; quick(); }
    }
  }

  async function think() {
    if (thinking) { rest = setTimeout(think, 300); return; }
    const mine = turn;
    thinking = true;
    try { await slowly(() => open && mine === turn); } finally { thinking = false; }
  }

  return {
    ask(moving) {
      turn++;
      clearTimeout(rest);
      rest = moving ? null : setTimeout(think, 150);
      if (asking) next = true; else quick();
    },
    close() { open = false; clearTimeout(rest); },
  };
}

// For the tests and benchmarks of the page: how long an answer took until it was drawn.
export function measured(begun) {
  performance.measure("refit", { start: begun, end: performance.now() });
  if (performance.getEntriesByName("refit").length > 500) performance.clearMeasures("refit");
}
