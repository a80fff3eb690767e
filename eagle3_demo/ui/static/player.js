// A race by its own clocks: what each side had written at a moment, and a player that moves the moment.

// Prepares one side: how many tokens and accepted guesses there are up to each step.
function indexSide(side) {
  const upTo = new Array(side.clock.length).fill(0);
  const accepted = new Array(side.clock.length).fill(0);
  for (const [, drafted, step] of side.tokens) {
    upTo[step] += 1;
    accepted[step] += drafted;
  }
  let drafts = 0;
  const draftsUpTo = side.drafted.map((count) => (drafts += count));
  for (let step = 1; step < upTo.length; step += 1) {
    upTo[step] += upTo[step - 1];
    accepted[step] += accepted[step - 1];
  }
  return { ...side, upTo, accepted, draftsUpTo };
}

// One side at `time` milliseconds of its own clock; `steps` counts the steps that were done by then.
function frameAt(side, time) {
  let low = 0;
  let high = side.clock.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (side.clock[middle] <= time) low = middle + 1;
    else high = middle;
  }
  const steps = low;
  const last = steps - 1;
  const frame = { steps, tokens: 0, forwards: 0, mean: null, recent: null, acceptance: null, drafted: 0, accepted: 0, clock: 0 };
  if (steps === 0) return frame;
  frame.tokens = side.upTo[last];
  frame.forwards = last;
  frame.clock = side.clock[last];
  frame.drafted = side.draftsUpTo[last];
  frame.accepted = side.accepted[last];
  if (steps > 1) {
    const decoded = frame.tokens - side.upTo[0];
    frame.mean = (1000 * decoded) / (frame.clock - side.clock[0]);
    frame.acceptance = decoded / last;
    let from = last;
    while (from > 0 && frame.clock - side.clock[from] < 1000) from -= 1;
    frame.recent = (1000 * (frame.tokens - side.upTo[from])) / (frame.clock - side.clock[from]);
  }
  return frame;
}

// The highest mean speed a side ever showed, its first steps left out: the end of the common scale.
function fastestMean(side) {
  let best = 0;
  for (let step = Math.min(8, side.clock.length - 1); step < side.clock.length; step += 1) {
    if (step > 0) best = Math.max(best, (1000 * (side.upTo[step] - side.upTo[0])) / (side.clock[step] - side.clock[0]));
  }
  return best;
}

// Play, pause, half speed, step by step, and a slider over the race's time.
class Player {
  constructor(onMove) {
    this.onMove = onMove;
    this.time = Infinity;
    this.length = 0;
    this.moments = [];
    this.playing = false;
    this.box = make("div", "player");
    this.play = makeButton("player-play", "▶ Replay", () => (this.playing ? this.pause() : this.start()));
    this.back = makeButton("step-button", "‹", () => this.step(-1), "One step back");
    this.forward = makeButton("step-button", "›", () => this.step(1), "One step on");
    this.speed = make("select", "player-speed");
    this.speed.setAttribute("aria-label", "Replay speed");
    for (const [value, name] of [["0.25", "¼ speed"], ["0.5", "½ speed"], ["1", "true speed"], ["2", "2× speed"]]) {
      const option = make("option", "", name);
      option.value = value;
      this.speed.append(option);
    }
    this.speed.value = "1";
    this.slider = make("input", "time-slider");
    this.slider.type = "range";
    this.slider.min = "0";
    this.slider.step = "10";
    this.slider.setAttribute("aria-label", "Moment of the race");
    this.slider.addEventListener("input", () => {
      this.pause();
      this.move(Number(this.slider.value));
    });
    this.label = make("span", "player-time");
    this.box.append(this.play, this.speed, this.back, this.forward, this.slider, this.label);
  }

  // Takes the race's step ends, in milliseconds.
  load(moments) {
    this.moments = [...new Set(moments)].sort((left, right) => left - right);
    this.length = this.moments.length ? this.moments[this.moments.length - 1] : 0;
    // A whole number of slider steps, so that its end is the end of the race.
    this.slider.max = String(10 * Math.ceil(this.length / 10));
  }

  start() {
    if (this.time >= this.length) this.time = 0;
    this.playing = true;
    setText(this.play, "❚❚ Pause");
    let before = performance.now();
    const tick = (now) => {
      if (!this.playing || !this.box.isConnected) return;
      const passed = Math.min(now - before, 250) * Number(this.speed.value);
      before = now;
      this.move(this.time + passed);
      if (this.time >= this.length) this.pause();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    this.playing = false;
    setText(this.play, this.time >= this.length ? "▶ Replay" : "▶ Play");
  }

  toEnd() {
    this.playing = false;
    this.move(Infinity);
    this.pause();
  }

  step(direction) {
    this.pause();
    const here = Math.min(this.time, this.length);
    const later = this.moments.find((moment) => moment > here);
    const earlier = this.moments.findLast((moment) => moment < here);
    this.move(direction > 0 ? later ?? this.length : earlier ?? 0);
    this.pause();
  }

  move(time) {
    this.time = Math.max(0, time);
    const shown = Math.min(this.time, this.length);
    this.slider.value = String(shown);
    const text = `${(shown / 1000).toFixed(1)} s of ${(this.length / 1000).toFixed(1)} s`;
    setText(this.label, text);
    this.slider.setAttribute("aria-valuetext", text);
    this.onMove(this.time);
  }
}
