// Draws the page from the data in it. Three sliders hold the whole state; every draw is
// a Plotly.react of the panels. Nothing is fetched: the page's policy forbids it.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const T = data.texts.length;
  const KEPT_NOT = 255, STEPS = 254; // as page.py writes weights
  const PROMPT = "#3d5a80", ANSWER = "#b34700", BLANK = "#f4f4f2";
  const MOST_EDGES = 1500, BINS = 12, CURVE_POINTS = 24, ARC = 0.62;
  const FONT = { family: 'system-ui, "DejaVu Sans", sans-serif', size: 12, color: "#222" };
  const CONFIG = { displayModeBar: false };

  // Tokens are anybody's text, and Plotly reads a little HTML: nothing of it may pass.
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const isPrompt = (token) => data.prompt === null || token < data.prompt;
  const colourOf = (token) => (isPrompt(token) ? PROMPT : ANSWER);
  const cut = (text) => { const signs = [...text]; return signs.length > 16 ? signs.slice(0, 15).join("") + "…" : text; };
  const plain = data.texts.map((text) => escaped(text));
  const coloured = data.texts.map((text, token) => `<span style="color:${colourOf(token)}">${escaped(cut(text))}</span>`);

  function bytes(text) {
    const raw = atob(text), out = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
    return out;
  }
  // Layers are places in the trace everywhere but where they are read: there, numbers in the model.
  const layerName = (layer) => data.layerNames[layer];
  const maps = data.maps && { ...data.maps, mean: bytes(data.maps.mean), heads: bytes(data.maps.heads) };
  const norms = data.norms && new Float32Array(bytes(data.norms.values).buffer);
  const sketch = data.sketch && bytes(data.sketch.values);

  // The causal half of a map as codes, row after row; null where the page does not hold it.
  function half(layer, head) {
    const size = (T * (T + 1)) / 2;
    const layers = head < 0 ? maps.meanLayers : maps.headLayers;
    const place = layers.indexOf(layer);
    if (place < 0) return null;
    const start = (head < 0 ? place : place * maps.numHeads + head) * size;
    return (head < 0 ? maps.mean : maps.heads).subarray(start, start + size);
  }
  const weightOf = (code) => (code / STEPS) ** 2;
  const shown = (weight) => weight.toPrecision(2);

  // Edges j -> i from a threshold on, the strongest last; of too many the strongest.
  function edgesOf(layer, head, threshold) {
    const codes = half(layer, head), edges = [];
    if (!codes) return null;
    const least = Math.max(1, Math.ceil(Math.sqrt(threshold) * STEPS - 1e-9));
    for (let i = 0, at = 0; i < T; i++, at++)
      for (let j = 0; j < i; j++, at++)
        if (codes[at] >= least && codes[at] !== KEPT_NOT) edges.push([codes[at], j, i]);
    edges.sort((a, b) => a[0] - b[0]);
    return { total: edges.length, list: edges.slice(-MOST_EDGES) };
  }

  // Where nodes stand; the same rule as graph.py.
  const promptCount = data.prompt === null ? T : data.prompt;
  const rows = Math.max(promptCount, T - promptCount);
  const nodeX = (token) => (token < promptCount ? 0 : 1);
  const nodeY = (token) => token < promptCount ? ((token + 0.5) * rows) / promptCount - 0.5
    : ((token - promptCount + 0.5) * rows) / (T - promptCount) - 0.5;

  function curve(j, i, xs, ys) {
    const x0 = nodeX(j), x3 = nodeX(i), y0 = nodeY(j), y3 = nodeY(i);
    const reach = (x0 === 0 ? 1 : -1) * (0.1 + (ARC * Math.abs(y3 - y0)) / Math.max(rows - 1, 1));
    const x1 = x0 === x3 ? x0 + reach : x0 + 0.5, x2 = x0 === x3 ? x3 + reach : x3 - 0.5;
    for (let n = 0; n <= CURVE_POINTS; n++) {
      const t = n / CURVE_POINTS, u = 1 - t;
      xs.push(u * u * u * x0 + 3 * u * u * t * x1 + 3 * u * t * t * x2 + t * t * t * x3);
      ys.push((u * u * u + 3 * u * u * t) * y0 + (3 * u * t * t + t * t * t) * y3);
    }
    xs.push(null);
    ys.push(null);
  }

  function colourAt(share) {
    const scale = data.weightColours, at = share * (scale.length - 1), low = Math.floor(at);
    const a = scale[low], b = scale[Math.min(low + 1, scale.length - 1)];
    return `rgb(${a.map((value, n) => Math.round(value + (b[n] - value) * (at - low))).join(",")})`;
  }
  const plotlyScale = (scale) => scale.map((rgb, n) => [n / (scale.length - 1), `rgb(${rgb.join(",")})`]);
  const weightScale = plotlyScale(data.weightColours), quantityScale = plotlyScale(data.quantityColours);

  // A place's own height keeps the page from jumping, and its width is what it will be only then:
  // beside a scroll bar, where it needs one.
  function sized(place, height) {
    const element = byId(place);
    element.style.height = `${height}px`;
    return element;
  }

  // Draws a panel as wide as its place.
  function react(place, traces, height, layout) {
    const element = sized(place, height);
    const fixed = { height, width: element.clientWidth, font: FONT, margin: { l: 8, r: 8, t: 8, b: 8 } };
    return Plotly.react(element, traces, { ...fixed, ...layout }, CONFIG);
  }

  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${FONT.size}px ${FONT.family}`;
  const widthOf = (text) => pen.measureText(text).width;
  function fitted(text, pixels) {
    if (widthOf(text) <= pixels) return text;
    const signs = [...text.replace(/…$/, "")];
    while (signs.length > 1 && widthOf(signs.join("") + "…") > pixels) signs.pop();
    return signs.join("") + "…";
  }

  // The labels of a graph, prompt and answer, and the range of x that leaves them room: as much as
  // they need, but so much for the edges between them that labels may have to be cut.
  function labelsIn(pixels) {
    const labels = data.texts.map(cut), gap = 12; // a node's half, and some air
    const needed = [0, 1].map((side) => gap + Math.max(0, ...labels.map((text, token) => nodeX(token) === side ? widthOf(text) : 0)));
    const most = 0.7 * pixels;
    const room = needed.map((own, side) => Math.max(0.3 * pixels, Math.min(own, Math.max(most / 2, most - needed[1 - side]))));
    const between = pixels - room[0] - room[1];
    return { labels: labels.map((text, token) => fitted(text, room[nodeX(token)] - gap)),
      range: [-room[0] / between, 1 + room[1] / between] };
  }

  function drawGraph(place, layer, head, threshold, height) {
    const { labels, range } = labelsIn(sized(place, height).clientWidth - 16); // margins, as react sets them
    const edges = edgesOf(layer, head, threshold), traces = [];
    const bins = Array.from({ length: BINS }, () => ({ x: [], y: [], share: [] }));
    const middle = { x: [], y: [], text: [] };
    for (const [code, j, i] of edges ? edges.list : []) {
      const share = code / STEPS, bin = bins[Math.min(BINS - 1, Math.floor(share * BINS))];
      const before = bin.x.length;
      curve(j, i, bin.x, bin.y);
      const at = before + CURVE_POINTS / 2;
      middle.x.push(bin.x[at]);
      middle.y.push(bin.y[at]);
      middle.text.push(`${plain[i]} (${i}) attends to ${plain[j]} (${j}): ${shown(weightOf(code))}`);
    }
    bins.forEach((bin, n) => {
      const share = (n + 0.5) / BINS;
      traces.push({ type: "scatter", mode: "lines", x: bin.x, y: bin.y, hoverinfo: "skip",
        line: { color: colourAt(share), width: 0.4 + 7 * share ** 1.5, simplify: false } });
    });
    traces.push({ type: "scatter", mode: "markers", ...middle, hoverinfo: "text",
      marker: { size: 9, opacity: 0 } });
    for (const side of [0, 1]) {
      const own = data.texts.map((_, token) => token).filter((token) => nodeX(token) === side);
      traces.push({ type: "scatter", mode: "markers+text", x: own.map(nodeX), y: own.map(nodeY),
        text: own.map((token) => escaped(labels[token])), cliponaxis: false,
        hovertext: own.map((token) => `token ${token}: ${plain[token]}`), hoverinfo: "text",
        textposition: side ? "middle right" : "middle left",
        textfont: { size: 12, color: side ? ANSWER : PROMPT },
        marker: { size: 7, color: side ? ANSWER : PROMPT, line: { color: "#fff", width: 1 } } });
    }
    const axis = { visible: false, fixedrange: true };
    const drawn = react(place, traces, height, { showlegend: false, hovermode: "closest",
      xaxis: { ...axis, range }, yaxis: { ...axis, range: [rows - 0.3, -0.7] } });
    return [drawn, edges];
  }

  // Every n-th token, so that labels have room.
  function tokenAxis(tokens, pixels) {
    const every = Math.max(1, Math.ceil((tokens.length * 14) / pixels));
    const places = tokens.map((_, n) => n).filter((n) => n % every === 0);
    return { tickmode: "array", tickvals: places, ticktext: places.map((n) => coloured[tokens[n]]),
      showgrid: false, zeroline: false, ticks: "" };
  }
  const allTokens = data.texts.map((_, token) => token);
  // Where the answer begins: down through `height` rows, and across where rows are tokens too.
  function boundary(height, across, colour = ANSWER) {
    if (data.prompt === null) return [];
    const at = data.prompt - 0.5, line = { color: colour, width: 1.4 };
    const down = { type: "line", x0: at, x1: at, y0: -0.5, y1: height - 0.5, line };
    return across ? [down, { type: "line", x0: -0.5, x1: T - 0.5, y0: at, y1: at, line }] : [down];
  }

  const mapHeight = () => Math.min(640, Math.max(360, byId("map").clientWidth * 0.82));

  function drawMap(layer, head) {
    const codes = half(layer, head), z = [], text = [];
    for (let i = 0, at = 0; i < T; i++) {
      const values = new Array(T).fill(null), told = new Array(T).fill("");
      for (let j = 0; codes && j <= i; j++, at++) {
        if (codes[at] === KEPT_NOT) continue;
        values[j] = codes[at] / STEPS;
        told[j] = `${plain[i]} (${i}) to ${plain[j]} (${j}): ${shown(weightOf(codes[at]))}`;
      }
      z.push(values);
      text.push(told);
    }
    const ticks = [0, 0.01, 0.05, 0.2, 0.5, 1];
    const height = mapHeight();
    const axis = tokenAxis(allTokens, height - 130);
    return react("map", [{ type: "heatmap", z, text, hoverinfo: "text", hoverongaps: false,
      colorscale: weightScale, zmin: 0, zmax: 1, colorbar: { thickness: 12, outlinewidth: 0,
        len: 0.8, title: { text: "weight", side: "right" }, tickvals: ticks.map(Math.sqrt), ticktext: ticks.map(String) } }],
      height, { plot_bgcolor: BLANK,
        xaxis: { ...axis, range: [-0.5, T - 0.5], tickangle: -90, automargin: true, constrain: "domain" },
        yaxis: { ...axis, range: [T - 0.5, -0.5], automargin: true, scaleanchor: "x", constrain: "domain" },
        shapes: boundary(T, true) });
  }

  function grid(place, z, tokens, labels, height, colorbar, extra, shapes, yTitle) {
    return react(place, [{ type: "heatmap", z, colorscale: quantityScale, hoverinfo: "text",
      hoverongaps: false, colorbar: { thickness: 12, outlinewidth: 0, ...colorbar }, ...extra }],
      height, { plot_bgcolor: BLANK, shapes,
        xaxis: { ...tokenAxis(tokens, byId(place).clientWidth - 140), range: [-0.5, tokens.length - 0.5],
          tickangle: -90, automargin: true },
        yaxis: { range: [z.length - 0.5, -0.5], automargin: true, showgrid: false, zeroline: false,
          title: { text: yTitle, standoff: 8 }, tickmode: "array", ...labels } });
  }
  function rowLabels(names) {
    const every = Math.max(1, Math.ceil(names.length / 16));
    const places = names.map((_, n) => n).filter((n) => n % every === 0);
    return { tickvals: places, ticktext: places.map((n) => String(names[n])) };
  }
  const frame = (row, width) => ({ type: "rect", xref: "x", yref: "y", x0: -0.5, x1: width - 0.5,
    y0: row - 0.5, y1: row + 0.5, line: { color: "#d1495b", width: 2.5 } });

  function drawSketch(layer, head) {
    const value = Number(byId("value").value), H = data.sketch.heads, V = data.sketch.titles.length;
    const [low, high] = data.sketch.ranges[value], z = [], text = [];
    for (let h = 0; h < H; h++) {
      const values = [], told = [];
      for (let t = 0; t < T; t++) {
        const code = sketch[((layer * H + h) * T + t) * V + value];
        const real = code === KEPT_NOT ? null : low + ((high - low) * code) / STEPS;
        values.push(real);
        told.push(real === null ? "" : `head ${h}, ${plain[t]} (${t}): ${real.toPrecision(3)}`);
      }
      z.push(values);
      text.push(told);
    }
    byId("sketch-title").textContent = `Sketch of every head, layer ${layerName(layer)}`;
    const shapes = head < 0 ? [] : [frame(head, T)];
    return grid("sketch", z, allTokens, rowLabels([...z.keys()]), Math.min(640, 150 + 20 * H), {},
      { text, zmin: low, zmax: high }, [...boundary(H, false, "#fff"), ...shapes], "head");
  }

  function drawNorms(layer) {
    const L = data.layers, tokens = data.norms.tokens, t = tokens.length, z = [], text = [];
    const wide = data.norms.wide, ticks = data.norms.ticks;
    for (let l = 0; l < L; l++) {
      const own = [...norms.subarray(l * t, (l + 1) * t)];
      z.push(own.map((value) => (!Number.isFinite(value) ? null : wide ? Math.log10(value) : value)));
      text.push(own.map((value, n) => `layer ${layerName(l)}, ${plain[tokens[n]]} (${tokens[n]}): ${value.toPrecision(4)}`));
    }
    const bar = wide ? { tickvals: ticks.map(Math.log10), ticktext: ticks.map(String) } : {};
    return grid("norms", z, tokens, rowLabels(data.layerNames), Math.min(700, 150 + 22 * L),
      { ...bar, title: { text: wide ? "norm, logarithmic" : "norm", side: "right" } },
      { text }, [...(t === T ? boundary(L, false, "#fff") : []), frame(layer, tokens.length)], "layer");
  }

  function drawScores(layer) {
    const scores = data.scores, at = scores.positions.map((_, n) => n), drawn = [];
    const shapes = scores.threshold === null ? [] : [{ type: "line", xref: "paper", yref: "y", x0: 0,
      x1: 1, y0: scores.threshold, y1: scores.threshold, line: { color: "#777", dash: "dash", width: 1.3 } }];
    const told = scores.threshold === null ? [] : [{ xref: "paper", yref: "y", x: 1, y: scores.threshold,
      xanchor: "right", yanchor: "bottom", showarrow: false, text: `threshold ${scores.threshold.toPrecision(3)}` }];
    drawn.push(react("scores", [{ type: "scatter", mode: "lines+markers", x: at, y: scores.values,
      hoverinfo: "text", text: scores.positions.map((token, n) => `${plain[token]} (${token}): ${scores.values[n].toFixed(3)}`),
      line: { color: ANSWER }, marker: { size: 7 } }], 300, { shapes, annotations: told,
      xaxis: { ...tokenAxis(scores.positions, byId("scores").clientWidth - 100), tickangle: -90,
        automargin: true, range: [-0.5, at.length - 0.5] },
      yaxis: { range: [-0.03, 1.03], automargin: true, gridcolor: "#e6e6e6", zeroline: false,
        title: { text: "probability of being hallucinated", standoff: 8 } } }));
    if (scores.byLayer) {
      const most = scores.signed ? scores.most : 1, row = scores.layers.indexOf(layer);
      const text = scores.byLayer.map((own, l) => own.map((value, n) =>
        `layer ${layerName(scores.layers[l])}, ${plain[scores.positions[n]]}: ${value.toFixed(3)}`));
      drawn.push(grid("by-layer", scores.byLayer, scores.positions, rowLabels(scores.layers.map(layerName)),
        Math.min(640, 150 + 20 * scores.layers.length), { title: { text: scores.byLayerTitle, side: "right" } },
        { text, zmin: scores.signed ? -most : 0, zmax: most,
          colorscale: scores.signed ? plotlyScale(data.signedColours) : quantityScale },
        row < 0 ? [] : [frame(row, at.length)], "layer"));
    }
    return Promise.all(drawn);
  }

  const state = { layer: data.start.layer, head: data.start.head, threshold: data.start.threshold };
  // The slider moves in equal steps of the square root, as colours and widths do.
  const threshold = () => (state.threshold / 100) ** 2;
  const layerRange = data.layers === data.layerNames[data.layers - 1] + 1 ? `0 to ${data.layers - 1}` : data.layerNames.join(", ");
  const headName = (head) => (head < 0 ? "mean over heads" : `head ${head}`);

  function draw() {
    const { layer, head } = state, drawn = [];
    byId("layer-value").textContent = `${layerName(layer)} of ${layerRange}`;
    byId("head-value").textContent = headName(head);
    byId("threshold-value").textContent = threshold().toFixed(4);
    byId("layer").setAttribute("aria-valuetext", `layer ${layerName(layer)}`);
    byId("head").setAttribute("aria-valuetext", headName(head));
    byId("threshold").setAttribute("aria-valuetext", threshold().toFixed(4));
    if (maps) {
      byId("graph-title").textContent = `Attention graph, layer ${layerName(layer)}, ${headName(head)}`;
      byId("map-title").textContent = `Attention map, layer ${layerName(layer)}, ${headName(head)}`;
      const [promise, edges] = drawGraph("graph", layer, head, threshold(), Math.max(mapHeight() - 60, 40 + 17 * rows));
      drawn.push(promise, drawMap(layer, head));
      const absent = edges === null;
      byId("remark").hidden = !absent;
      byId("remark").textContent = absent ? data.absent : "";
      const sides = data.prompt === null ? "" : " Prompt left, answer right.";
      byId("graph-told").textContent = absent ? "Not on this page." :
        edges.total > MOST_EDGES ? `The strongest ${MOST_EDGES} of ${edges.total} edges.${sides}` : `${edges.total} edge${edges.total === 1 ? "" : "s"}.${sides}`;
      const beside = data.chosen.length > 1 ? data.chosen : [], height = Math.max(240, 30 + 15 * rows);
      for (const own of beside) sized(`side-${own}`, height);
      for (const own of beside) drawn.push(drawGraph(`side-${own}`, own, head, threshold(), height)[0]);
    }
    if (sketch) drawn.push(drawSketch(layer, head));
    if (norms) drawn.push(drawNorms(layer));
    if (data.scores) drawn.push(drawScores(layer));
    return Promise.all(drawn).then(() => {
      document.body.dataset.draws = String(Number(document.body.dataset.draws || 0) + 1);
    });
  }

  let waiting = false;
  function soon() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  function fill() {
    byId("name").textContent = data.name;
    byId("described").textContent = data.described;
    data.texts.forEach((text, token) => {
      const span = document.createElement("span");
      span.textContent = text;
      span.className = isPrompt(token) ? "prompt" : "answer";
      span.title = `token ${token}`;
      byId("tokens").append(span);
    });
    for (const note of data.notes) {
      const item = document.createElement("li");
      item.textContent = note;
      byId("notes").append(item);
    }
    const limits = { layer: [0, data.layers - 1], head: [-1, (maps ? maps.numHeads : 0) - 1], threshold: [0, 100] };
    for (const [id, [low, high]] of Object.entries(limits)) {
      const slider = byId(id);
      slider.min = low;
      slider.max = high;
      slider.value = state[id];
      slider.disabled = low === high || (id !== "layer" && !maps);
      slider.addEventListener("input", () => { state[id] = Number(slider.value); soon(); });
    }
    const have = { graph: maps, map: maps, side: maps && data.chosen.length > 1, sketch, norms, scores: data.scores };
    for (const [id, there] of Object.entries(have)) byId(`${id}-section`).hidden = !there;
    if (have.side) {
      for (const layer of data.chosen) {
        const box = document.createElement("div"), title = document.createElement("h3"), plot = document.createElement("div");
        title.textContent = `layer ${layerName(layer)}`;
        title.style.cssText = "font-size: .87rem; text-align: center; margin: .3rem 0 0";
        plot.id = `side-${layer}`;
        box.append(title, plot);
        byId("side").append(box);
      }
    }
    if (sketch) {
      data.sketch.titles.forEach((title, n) => byId("value").append(new Option(title, n)));
      byId("value").addEventListener("change", soon);
      if (T && !data.maps) byId("head").disabled = true;
    }
    if (data.scores) {
      byId("scores-title").textContent = `Score of ${data.scores.detector} at each token`;
      byId("scores-told").textContent = data.scores.remark;
    }
  }
  fill();
  draw();
  window.addEventListener("resize", soon);
})();
