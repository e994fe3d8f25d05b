"use strict";
// All text comes from runs and is set as text, never as HTML.
let data = JSON.parse(document.getElementById("content").textContent);
const LIVE = document.documentElement.dataset.live === "true";
const LIVE_MS = 2000, MOST_IN_TIP = 12, MOST_COLUMNS = 6, MOST_LANES = 60, MOST_INCIDENTS = 300, HEIGHT = 210, REACH = 40;
// Okabe and Ito's colours, which people with any colour vision can tell apart, some lighter or darker than published
// so that they stand out from the page.
const COLOURS = {
  light: ["#0072B2", "#D98200", "#009E73", "#CC79A7", "#3AA0DD", "#D55E00", "#777777", "#8F7A00"],
  dark: ["#4BA3E3", "#F0A830", "#21C197", "#E29BC4", "#8CD0F5", "#F0803C", "#A0A0A0", "#D9C93F"],
};
const KINDS = {
  restored: ["resumed", "↻"], preempted: ["told to stop", "‖"], stopped: ["ended", "■"], failed: ["failed", "×"],
  blown_up: ["loss blew up", "!"], diverged: ["not finite", "!"], damaged: ["damaged file", "?"],
  stopped_early: ["stopped early", "■"], skipped: ["data skipped", "»"], skipped_file: ["file skipped", "?"],
  set_aside: ["file set aside", "?"], superseded: ["file superseded", "?"], dropped: ["save dropped", "?"],
  input_bound: ["waits for input", "…"], pruned: ["pruned", "■"], finished: ["finished", "■"],
};
const MARKED = new Set(["restored", "preempted", "failed", "blown_up", "diverged", "stopped_early", "skipped", "pruned"]);
const ui = { hidden: new Set(), zoom: null, sorts: {}, by: null };
const at = id => document.getElementById(id);
const media = matchMedia("(prefers-color-scheme: dark)");

function el(tag, props, ...children) {
  const one = document.createElement(tag);
  Object.assign(one, props);
  one.append(...children.filter(child => child !== null && child !== undefined));
  return one;
}
const isNumber = x => typeof x === "number" && Number.isFinite(x);
function shown(x) {
  if (x === null || x === undefined) return "—";
  if (typeof x !== "number") return String(x);
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e15) return x.toLocaleString("en");
  return size !== 0 && (size < 1e-4 || size >= 1e6) ? x.toExponential(3) : Number(x.toPrecision(5)).toString();
}
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
function ticked(v) {
  const size = Math.abs(v ?? 0);
  if (v === null || (size >= 1e-4 && size < 1e4) || size === 0) return v === null ? "" : shown(v);
  return size >= 1e4 && size < 1e15 ? compact.format(v) : v.toExponential(Number.isInteger(Number(v.toPrecision(1)) / v) ? 0 : 1);
}
function duration(s) {
  if (!isNumber(s)) return "—";
  if (s < 60) return `${s < 10 ? Number(s.toPrecision(2)) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round(s % 3600 / 60)} min`;
  return `${(s / 86400).toFixed(1)} d`;
}
const date = s => s > 0 && s < 8.6e12 ? new Date(s * 1000).toLocaleString() : "—";
const valueText = v => typeof v === "string" ? v : JSON.stringify(v);

// Colours -----------------------------------------------------------------------------------------------------------
const groupOf = i => data.groups.findIndex(group => group.runs.includes(i));
const style = i => ui.by === "setting" ? groupOf(i) : i;
const palette = () => COLOURS[document.documentElement.dataset.theme];
const colour = i => palette()[style(i) % palette().length];
const dash = i => style(i) >= palette().length ? [[6, 4], [2, 3]][Math.floor(style(i) / palette().length) % 2] : undefined;
function key(i) {
  const one = el("span", { className: "key" });
  one.style.background = colour(i);
  return one;
}
function store(name, value) {
  try { return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value); } catch { return null; }
}
function setTheme(forced) {
  const wish = forced || store("trellis-theme") || "auto";
  document.documentElement.dataset.theme = wish === "auto" ? (media.matches ? "dark" : "light") : wish;
  if (!forced) at("theme").textContent = `theme: ${wish}`;
}

// Tables ------------------------------------------------------------------------------------------------------------
// A cell is text, a node, or {node, sort}; a head is text or {text, num, title}.
function table(place, id, heads, rows) {
  place.replaceChildren();
  if (!rows.length) { place.append(el("p", { className: "dim" }, "None.")); return; }
  const sort = ui.sorts[id];
  const valueAt = (row, n) => { const cell = row.cells[n]; return cell && cell.sort !== undefined ? cell.sort : cell; };
  if (sort) {
    const missing = v => v === null || v === undefined || v === "—" || Number.isNaN(v);
    rows = [...rows].sort((a, b) => {
      const x = valueAt(a, sort.n), y = valueAt(b, sort.n);
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      return sort.way * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
    });
  }
  const head = el("tr");
  heads.forEach((one, n) => {
    const cell = el("th", { className: "sorts" + (one.num ? " num" : ""), title: one.title || "", scope: "col" }, one.text ?? one);
    if (sort && sort.n === n) cell.dataset.way = sort.way;
    cell.onclick = () => {
      ui.sorts[id] = sort && sort.n === n ? (sort.way === 1 ? { n, way: -1 } : undefined) : { n, way: 1 };
      draw();
    };
    head.append(cell);
  });
  const body = el("tbody");
  for (const row of rows) {
    const line = el("tr", { className: row.className || "" });
    row.cells.forEach((cell, n) => {
      const node = cell && cell.node !== undefined ? cell.node : cell;
      line.append(el("td", { className: [(cell && cell.className) || "", heads[n].num ? "num" : ""].join(" ") }, node ?? "—"));
    });
    body.append(line);
  }
  place.append(el("table", {}, el("thead", {}, head), body));
}

function drawRuns() {
  const rows = data.runs.map((run, i) => {
    const box = el("input", { type: "checkbox", checked: !ui.hidden.has(run.name), title: "show its curves" });
    box.onchange = () => { box.checked ? ui.hidden.delete(run.name) : ui.hidden.add(run.name); draw(); };
    const main = data.main_metrics.find(name => run.curves[name]);
    const last = main ? run.curves[main][1].at(-1) : null;
    const speed = run.speed[1] !== null ? [run.speed[1], "tokens/s"] : [run.speed[0], "examples/s"];
    const now = LIVE ? Date.now() / 1000 : data.made_at;
    const age = run.last_time > 0 ? Math.max(0, now - run.last_time) : null;
    return { className: ui.hidden.has(run.name) ? "off" : "", cells: [
      { node: el("label", { className: "run", title: run.name }, box, key(i), run.title), sort: run.title, className: "name" },
      run.experiment || "—",
      { node: el("span", { className: "state " + run.state }, run.state), sort: run.state },
      { node: shown(run.step), sort: run.step },
      { node: main ? el("span", { title: main }, shown(last), el("span", { className: "dim" }, " " + main)) : "—", sort: last },
      { node: speed[0] === null ? "—" : `${shown(isNumber(speed[0]) ? Math.round(speed[0]) : speed[0])} ${speed[1]}`, sort: speed[0] },
      { node: run.last_time > 0 ? duration(run.last_time - run.start) : "—", sort: run.last_time - run.start },
      { node: age === null ? "—" : el("span", { title: date(run.last_time) }, `${duration(age)} ago`), sort: age },
      { node: run.damage || "", className: "wrap" },
    ] };
  });
  const heads = ["run", "experiment", "state", { text: "step", num: true }, "main metric, last", { text: "speed", num: true },
    { text: "lasted", num: true }, { text: "last sign of life", num: true }];
  const isDamaged = data.runs.some(run => run.damage);
  if (isDamaged) heads.push("its files"); else rows.forEach(row => row.cells.pop());
  table(at("runs"), "runs", heads, rows);
}

function spread(v) { return v ? shown(v[0]) + (isNumber(v[1]) ? ` ± ${shown(Number(v[1].toPrecision(2)))}` : "") : "—"; }
function settingsOf(group) {
  const fields = data.config.filter(([path, leaves]) => path !== "runtime.seed" && leaves[group.runs[0]][0] !== "not there").slice(0, 3);
  return fields.map(([path, leaves]) => `${path.split(".").at(-1)} ${valueText(leaves[group.runs[0]][0])}`).join(", ");
}
function drawMetrics() {
  const learning = data.metrics.filter(name => !data.clocked.includes(name));
  const wanted = [...new Set([...data.main_metrics, ...learning.filter(name => name.startsWith("eval/")), ...learning.filter(name => name === "train/loss")])];
  const names = at("all").checked ? learning : wanted.slice(0, MOST_COLUMNS);
  at("all").parentNode.hidden = learning.length === names.length && !at("all").checked;
  const columns = names.flatMap(name => [{ name, which: "last" }, ...(name.startsWith("eval/") ? [{ name, which: "best" }] : [])]);
  const top = columns.map(({ name, which }) => {
    const lower = data.lower_is_better.includes(name);
    const values = data.groups.map(group => group[which][name]?.[0]).filter(isNumber);
    return values.length > 1 && name.startsWith("eval/") ? (lower ? Math.min(...values) : Math.max(...values)) : null;
  });
  const rows = data.groups.map(group => ({ cells: [
    { node: el("div", {}, ...group.runs.map((i, n) => el("div", { title: data.runs[i].name }, key(i), data.runs[i].title,
        group.runs.length > 1 ? el("span", { className: "dim" }, ` seed ${shown(group.seeds[n])}`) : null)),
        data.groups.length > 1 ? el("div", { className: "dim" }, settingsOf(group)) : null),
      sort: data.runs[group.runs[0]].title, className: "name" },
    ...columns.map(({ name, which }, n) => {
      const v = group[which][name];
      const steps = which === "best" && v ? v[3].map(shown).join(", ") : "";
      return { node: v ? el("span", {}, spread(v), steps ? el("div", { className: "dim" }, `step ${steps}`) : null) : "—",
        sort: v ? v[0] : null, className: v && v[0] === top[n] ? "best" : "" };
    })] }));
  table(at("metrics"), "metrics", ["runs", ...columns.map(({ name, which }) => ({ text: `${name} ${which}`, num: true }))], rows);
  const isGrouped = data.groups.some(group => group.runs.length > 1);
  at("metrics-note").textContent = isGrouped ? "Runs that differ only in their seed are one row: mean ± standard deviation." : "";
}

// Curves ------------------------------------------------------------------------------------------------------------
let plots = new Map();
const tip = el("div", { className: "tip", hidden: true });
document.body.append(tip);
function smoothed(values, weight) {
  let sum = 0, norm = 0;
  return values.map(v => {
    if (!isNumber(v)) return null;
    sum = weight * sum + (1 - weight) * v;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}
const xOf = (run, name) => run.axes[run.curves[name][0]][at("x").value === "time" ? 1 : 0];
function fullRange() {
  let low = Infinity, high = -Infinity;
  data.runs.forEach(run => {
    if (!ui.hidden.has(run.name)) run.axes.forEach(axes => {
      const xs = axes[at("x").value === "time" ? 1 : 0];
      for (const x of xs) { low = Math.min(low, x); high = Math.max(high, x); }
    });
  });
  if (low > high) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}
function setZoom(range) {
  ui.zoom = range;
  at("reset").hidden = !range;
  const [min, max] = range || fullRange();
  plots.forEach(({ plot }) => plot.setScale("x", { min, max }));
}
function incidentKind(e) { return e.kind === "stopped" && e.error ? "failed" : e.kind; }
function drawMarks(u, name) {
  const { ctx, bbox } = u, ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath(); ctx.rect(bbox.left, bbox.top - 12 * ratio, bbox.width, bbox.height + 12 * ratio); ctx.clip();
  ctx.font = `${10 * ratio}px system-ui`; ctx.textAlign = "center";
  data.runs.forEach((run, i) => {
    if (ui.hidden.has(run.name) || !run.curves[name]) return;
    ctx.strokeStyle = ctx.fillStyle = colour(i);
    if (at("marks").checked) run.incidents.forEach(e => {
      const kind = incidentKind(e);
      if (!MARKED.has(kind)) return;
      const x = u.valToPos(at("x").value === "time" ? e.time - run.start : e.step, "x", true);
      if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return;
      ctx.globalAlpha = 0.45; ctx.setLineDash([3 * ratio, 3 * ratio]); ctx.lineWidth = ratio;
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      ctx.globalAlpha = 1; ctx.fillText(KINDS[kind][1], x, bbox.top - 2 * ratio);
    });
    // What is no number has no height: it is marked at the edge.
    const xs = xOf(run, name);
    run.curves[name][1].forEach((v, n) => {
      if (typeof v !== "string") return;
      const x = u.valToPos(xs[n], "x", true);
      ctx.globalAlpha = 1; ctx.fillText(v === "inf" ? "∞" : v === "-inf" ? "-∞" : "×", x, v === "inf" ? bbox.top + 9 * ratio : bbox.top + bbox.height - 3 * ratio);
    });
  });
  ctx.restore();
}
function nearest(ys, n) {
  for (let d = 0; d < ys.length; d++) {
    if (ys[n - d] !== null && ys[n - d] !== undefined) return n - d;
    if (ys[n + d] !== null && ys[n + d] !== undefined) return n + d;
  }
  return null;
}
function showTip(u, shownRuns, offset) {
  const { left, top, idx } = u.cursor;
  if (left === null || left < 0 || idx === null || idx === undefined) { tip.hidden = true; return; }
  const rows = shownRuns.map((i, n) => {
    const ys = u.data[1 + offset + n], where = nearest(ys, idx);
    const isFar = where !== null && Math.abs(u.valToPos(u.data[0][where], "x") - left) > REACH;
    return where === null || isFar ? null : { i, y: ys[where], d: Math.abs(u.valToPos(ys[where], "y") - top) };
  }).filter(Boolean).sort((a, b) => a.d - b.d);
  const x = u.data[0][idx];
  tip.replaceChildren(el("div", { className: "dim" }, at("x").value === "time" ? duration(x) : `step ${shown(x)}`),
    ...rows.slice(0, MOST_IN_TIP).map(({ i, y }) => el("div", {}, key(i), el("span", { className: "what" }, data.runs[i].title), el("span", {}, shown(y)))),
    ...(rows.length > MOST_IN_TIP ? [el("div", { className: "dim" }, `and ${rows.length - MOST_IN_TIP} more`)] : []));
  tip.hidden = false;
  const box = u.over.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const right = box.left + left + 14, down = box.top + top + 14;
  tip.style.left = `${Math.max(4, right + size.width > innerWidth ? box.left + left - 14 - size.width : right)}px`;
  tip.style.top = `${Math.max(4, down + size.height > innerHeight ? innerHeight - size.height - 4 : down)}px`;
}
function drawCurves() {
  const words = at("filter").value.trim().split(/\s+/).filter(Boolean);
  const names = data.metrics.filter(name => words.every(word => name.includes(word)));
  const css = getComputedStyle(document.documentElement), weight = Number(at("smooth").value), isLog = at("log").checked, isTime = at("x").value === "time";
  at("smooth-value").textContent = weight || "off";
  const axis = { stroke: css.getPropertyValue("--dim"), grid: { stroke: css.getPropertyValue("--line"), width: 1 }, ticks: { stroke: css.getPropertyValue("--line"), width: 1 }, font: "11px system-ui" };
  const kept = new Map(), [min, max] = ui.zoom || fullRange();
  for (const name of names) {
    const having = data.runs.map((run, i) => i).filter(i => data.runs[i].curves[name] && !ui.hidden.has(data.runs[i].name));
    if (!having.length) continue;
    const usable = v => isNumber(v) && !(isLog && v <= 0) ? v : null;
    const tables = having.map(i => [xOf(data.runs[i], name), data.runs[i].curves[name][1].map(usable)]);
    const smooth = tables.map(([xs, ys]) => [xs, weight ? smoothed(ys, weight) : ys]);
    const joined = uPlot.join([...(weight ? tables : []), ...smooth]);
    const signature = JSON.stringify([having.map(i => [data.runs[i].name, colour(i), dash(i)]), weight > 0, isLog, isTime, axis]);
    const before = plots.get(name);
    if (before && before.signature === signature) {
      kept.set(name, before);
      before.plot.setData(joined, false);
      before.plot.setScale("x", { min, max });
      continue;
    }
    const card = el("div", { className: "card" }, el("h3", {}, name)), place = el("div");
    card.append(place);
    at("curves").append(card); // so that it has a width
    const series = having.map(i => ({ label: data.runs[i].title, stroke: colour(i), width: 1.6, dash: dash(i), points: { size: 4 } }));
    const raw = weight ? having.map(i => ({ stroke: colour(i), width: 1, alpha: 0.25, points: { show: false } })) : [];
    const plot = new uPlot({
      width: Math.max(160, card.clientWidth - 20), height: HEIGHT, legend: { show: false }, padding: [14, 16, 0, 0],
      cursor: {
        y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "runs", setSeries: false, scales: ["x", null] },
        bind: { dblclick: () => () => { setZoom(null); return null; } },
        dataIdx: (u, s, n) => (s === 0 ? n : nearest(u.data[s], n) ?? n),
      },
      scales: { x: { time: false, range: (u, low, high) => low === null ? [0, 1] : [low, high] }, y: isLog ? { distr: 3 } : {} },
      axes: [{ ...axis, size: 28, values: (u, ticks) => ticks.map(isTime ? duration : ticked), space: isTime ? 90 : 60 }, { ...axis, size: 58, values: (u, ticks) => ticks.map(ticked) }],
      series: [{}, ...raw, ...series],
      hooks: {
        draw: [u => drawMarks(u, name)],
        setCursor: [u => { if (u.over.matches(":hover")) showTip(u, having, raw.length); }],
        setSelect: [u => {
          if (u.select.width < 4) return;
          const range = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          if (u.over.matches(":hover")) setZoom(range);
        }],
      },
    }, joined, place);
    plot.over.addEventListener("mouseleave", () => { tip.hidden = true; });
    plot.setScale("x", { min, max });
    kept.set(name, { plot, card, signature });
  }
  plots.forEach((one, name) => { if (kept.get(name) !== one) { one.plot.destroy(); one.card.remove(); } });
  plots = new Map(names.filter(name => kept.has(name)).map(name => [name, kept.get(name)]));
  at("curves").replaceChildren(...[...plots.values()].map(one => one.card));
  if (!plots.size) at("curves").append(el("p", { className: "dim" }, data.metrics.length ? "No metric has a name like this." : "The runs have told no metrics."));
}

// What happened, where the time went, in what the runs differ --------------------------------------------------------
function drawIncidents() {
  const lanes = data.runs.slice(0, MOST_LANES), longest = Math.max(1e-3, ...lanes.map(run => run.last_time - run.start));
  const isEmpty = lanes.every(run => !run.attempts.length);
  at("timeline").replaceChildren(...(isEmpty ? [] : lanes.map((run, i) => {
    const track = el("div", { className: "track" });
    run.attempts.forEach(([start, end], n) => {
      const life = el("div", { className: "life", title: `attempt ${n + 1}: ${date(start)}, ${duration(end - start)}` });
      life.style.cssText = `left:${100 * (start - run.start) / longest}%;width:${100 * (end - start) / longest}%;background:${colour(i)}`;
      track.append(life);
    });
    run.incidents.forEach(e => {
      const kind = incidentKind(e);
      if (!MARKED.has(kind)) return;
      const tick = el("div", { className: "tick", title: `${KINDS[kind][0]}, step ${shown(e.step)}, ${date(e.time)}\n${e.text || e.error}` });
      tick.dataset.mark = KINDS[kind][1];
      const tint = ["failed", "diverged", "blown_up"].includes(kind) ? "var(--bad)" : "var(--dim)";
      tick.style.cssText = `left:${Math.min(100, Math.max(0, 100 * (e.time - run.start) / longest))}%;background:${tint}`;
      track.append(tick);
    });
    return el("div", { className: "lane" }, el("div", { className: "what", title: run.name }, key(i), run.title), track);
  })), ...(isEmpty ? [] : [el("div", { className: "lane dim" }, el("span", {}, "since it was begun"), el("div", { className: "ends" }, el("span", {}, "0"), el("span", {}, duration(longest))))]));
  const events = data.runs.flatMap((run, i) => run.incidents.filter(e => !["finished", "stopped"].includes(incidentKind(e))).map(e => ({ e, i })));
  const rows = events.sort((a, b) => a.e.time - b.e.time).slice(-MOST_INCIDENTS).map(({ e, i }) => ({ cells: [
    { node: date(e.time), sort: e.time },
    { node: el("span", {}, key(i), data.runs[i].title), sort: data.runs[i].title, className: "name" },
    { node: shown(e.step), sort: e.step }, (KINDS[incidentKind(e)] || [e.kind])[0], { node: e.text || e.error, className: "wrap" }] }));
  table(at("incidents"), "incidents", ["when", "run", { text: "step", num: true }, "what", ""], rows);
}

function drawTime() {
  const tint = n => data.buckets[n][0] === "other" ? "var(--line)" : palette()[(n + 2) % palette().length], place = at("time"), used = new Set();
  const bars = data.runs.map((run, i) => {
    const head = el("div", {}, key(i), run.title);
    if (!run.goodput) return el("div", {}, head, el("p", { className: "dim" }, "Its events do not tell."));
    const seconds = run.goodput.seconds, total = Object.values(seconds).reduce((a, b) => a + b, 0) || 1;
    head.append(el("span", { className: "dim" }, `  ${duration(total)}, ${run.goodput.n_attempts} attempt${run.goodput.n_attempts > 1 ? "s" : ""}, ${(100 * run.goodput.goodput).toFixed(1)} % were steps`));
    const stack = el("div", { className: "stack" });
    data.buckets.forEach(([bucket, name], n) => {
      if (!(seconds[bucket] > 0)) return;
      used.add(n);
      const part = el("div", { title: `${name}: ${duration(seconds[bucket])} (${(100 * seconds[bucket] / total).toFixed(1)} %)` });
      part.style.cssText = `width:${100 * seconds[bucket] / total}%;background:${tint(n)}`;
      stack.append(part);
    });
    return el("div", {}, head, stack);
  });
  const legend = el("div", { className: "legend" }, ...data.buckets.map(([, name], n) => {
    if (!used.has(n)) return null;
    const square = el("span", { className: "key" });
    square.style.background = tint(n);
    return el("span", {}, square, name);
  }));
  place.replaceChildren(legend, ...bars);
}

function drawConfig() {
  const leaf = ([value, origin]) => ({ node: el("div", {}, el("div", {}, valueText(value)), origin ? el("div", { className: "dim" }, origin) : null), sort: isNumber(value) ? value : valueText(value) });
  if (!data.config.length) {
    const isAlone = data.runs.length < 2;
    at("config").replaceChildren(el("p", { className: "dim" }, isAlone ? "One run differs from nothing." : "They have the same config, or have left none."));
  } else if (data.runs.length <= data.config.length) {
    table(at("config"), "config", ["field", ...data.runs.map(run => ({ text: run.title, title: run.name }))],
      data.config.map(([path, leaves]) => ({ cells: [path, ...leaves.map(leaf)] })));
  } else {
    table(at("config"), "config", ["run", ...data.config.map(([path]) => ({ text: path.split(".").at(-1), title: path }))],
      data.runs.map((run, i) => ({ cells: [{ node: el("span", {}, key(i), run.title), sort: run.title, className: "name" }, ...data.config.map(([, leaves]) => leaf(leaves[i]))] })));
  }
}

// Samples -----------------------------------------------------------------------------------------------------------
function picture({ width, height, channels, pixels }) {
  const bytes = Uint8Array.from(atob(pixels), c => c.charCodeAt(0)), canvas = el("canvas", { width, height });
  const image = canvas.getContext("2d").createImageData(width, height);
  for (let n = 0; n < width * height; n++) {
    for (let c = 0; c < 3; c++) image.data[4 * n + c] = bytes[channels === 3 ? 3 * n + c : n];
    image.data[4 * n + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
function matrix(samples) {
  const sums = samples.confusion.map(row => row.reduce((a, b) => a + b, 0) || 1);
  const head = el("tr", {}, el("th", {}, ""), ...samples.labels.map(label => el("th", { scope: "col" }, label)));
  const rows = samples.confusion.map((row, i) => el("tr", {}, el("th", { scope: "row" }, samples.labels[i]), ...row.map((n, j) => {
    const cell = el("td", { title: `${samples.labels[i]} taken for ${samples.labels[j]}: ${n} (${(100 * n / sums[i]).toFixed(1)} %)` }, n ? String(n) : "");
    cell.style.background = n ? `color-mix(in srgb, var(${i === j ? "--good" : "--bad"}) ${Math.round(12 + 58 * n / sums[i])}%, transparent)` : "";
    return cell;
  })));
  return el("div", { className: "scroll" }, el("table", { className: "matrix" }, el("caption", { className: "dim" }, "A row is a label, a column what was predicted."), el("thead", {}, head), el("tbody", {}, ...rows)));
}
function drawSamples() {
  const example = (samples, one) => el("div", { className: "sample" }, one.picture ? picture(one.picture) : null, one.text ? el("div", {}, one.text) : null,
    el("div", { className: one.label === one.predicted ? "dim" : "failed" }, `${samples.labels[one.label]} → ${samples.labels[one.predicted]}`),
    el("div", { className: "dim" }, `loss ${shown(one.loss)}`));
  const parts = data.runs.map((run, i) => [run, i]).filter(([run]) => run.samples).map(([run, i]) => {
    const part = el("div", {}, el("h3", {}, key(i), run.title, el("span", { className: "dim" }, `  step ${shown(run.samples.step)}, ${shown(run.samples.n_examples)} examples`)));
    try {
      if (run.samples.confusion) part.append(matrix(run.samples));
      part.append(el("div", { className: "dim" }, "Hardest, by their loss: label → prediction"), el("div", { className: "samples" }, ...run.samples.hardest.map(one => example(run.samples, one))));
      part.append(el("div", { className: "dim" }, "The first ones"), el("div", { className: "samples" }, ...run.samples.first.map(one => example(run.samples, one))));
    } catch (error) {
      part.append(el("p", { className: "dim" }, "Its samples.json is of another form, and not shown."));
    }
    return part;
  });
  at("s-samples").hidden = !parts.length;
  // Those that are open stay open.
  const open = new Set([...at("samples").children].filter(one => one.open).map(one => one.dataset.run));
  at("samples").replaceChildren(...parts.map((part, n) => {
    const run = data.runs.filter(one => one.samples)[n];
    const one = el("details", { open: open.has(run.name) || (!open.size && n === 0) }, el("summary", {}, run.title), part);
    one.dataset.run = run.name;
    return one;
  }));
}

// The page ----------------------------------------------------------------------------------------------------------
function draw() {
  const experiments = [...new Set(data.runs.map(run => run.experiment).filter(Boolean))];
  at("title").textContent = data.runs.length === 1 ? data.runs[0].title : `${data.runs.length} runs${experiments.length === 1 ? ` of ${experiments[0]}` : ""}`;
  document.title = at("title").textContent;
  if (ui.by === null) ui.by = data.groups.length > 1 && data.groups.length < data.runs.length ? "setting" : "run";
  at("by").value = ui.by;
  at("by").parentNode.hidden = data.groups.length === data.runs.length;
  // What is wrong with one part leaves the others.
  for (const part of [drawRuns, drawMetrics, drawCurves, drawIncidents, drawTime, drawConfig, drawSamples]) {
    try { part(); } catch (error) { console.error(part.name, error); }
  }
  at("nav").replaceChildren(...[...document.querySelectorAll("main section")].filter(one => !one.hidden).map(one => el("a", { href: `#${one.id}` }, one.dataset.title)));
  at("foot").textContent = `Made by Trellis ${data.version}, ${date(data.made_at)}.`;
}
document.querySelectorAll("main section").forEach(one => one.prepend(el("h2", {}, one.dataset.title)));
for (const id of ["log", "marks", "x"]) at(id).addEventListener("change", () => { if (id === "x") { ui.zoom = null; at("reset").hidden = true; } plots.forEach(one => one.plot.redraw()); drawCurves(); });
for (const id of ["smooth", "filter"]) at(id).addEventListener("input", drawCurves);
at("by").addEventListener("change", () => { ui.by = at("by").value; draw(); });
at("all").addEventListener("change", drawMetrics);
at("reset").addEventListener("click", () => setZoom(null));
at("theme").addEventListener("click", () => {
  const order = ["auto", "light", "dark"];
  store("trellis-theme", order[(order.indexOf(store("trellis-theme") || "auto") + 1) % 3]);
  setTheme(); draw();
});
media.addEventListener("change", () => { setTheme(); draw(); });
const resize = width => plots.forEach(one => one.plot.setSize({ width: width || Math.max(160, one.card.clientWidth - 20), height: HEIGHT }));
addEventListener("resize", () => resize());
addEventListener("beforeprint", () => { setTheme("light"); draw(); resize(330); document.querySelectorAll("details").forEach(one => { one.open = true; }); });
addEventListener("afterprint", () => { setTheme(); draw(); resize(); });
setTheme();
draw();

if (LIVE) {
  at("live").hidden = false;
  const tell = (isLost, text) => { at("live").classList.toggle("lost", isLost); at("live").lastChild.textContent = text; };
  let before = "";
  const ask = async () => {
    try {
      const answer = await fetch("content.json", { cache: "no-store", headers: before ? { "If-None-Match": before } : {} });
      if (answer.ok) {
        const fresh = await answer.json();
        before = answer.headers.get("ETag") || "";
        data = fresh;
        draw();
      } else if (answer.status !== 304) throw new Error(String(answer.status));
      tell(false, "live");
    } catch (error) {
      tell(true, "the server does not answer");
    }
    setTimeout(ask, LIVE_MS);
  };
  setTimeout(ask, LIVE_MS);
}
