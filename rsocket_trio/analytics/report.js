"use strict";
// Draws the charts of the page from its tables, and draws them anew when a filter changes. Every text of a peer goes into
// the document as text (textContent), or into a chart with its tags escaped (label).

// ---- Tables

const DATA = JSON.parse(document.getElementById("data").textContent);
const NAMES = DATA.names;
const NO_ROUTE = "(no route)";
const UNKNOWN = "(unknown)";

// A table has a `length` and columns; a column of texts holds indices of NAMES, -1 for none; times are us since 1970.
function table(name) {
  const found = DATA.tables[name];
  if (!found) return {length: 0};
  const columns = {length: found.n};
  for (const [column, packed] of Object.entries(found.columns)) {
    columns[column] = packed.step ? packed.values.map((value) => value === null ? null : packed.base + packed.step * value) : packed.values;
  }
  return columns;
}

const T = Object.fromEntries(["rate_cells", "latency_cells", "error_cells", "size_cells", "traffic_cells", "slow_requests",
  "slow_frames", "starved", "connection_timeline", "connection_routes"].map((name) => [name, table(name)]));
const SPAN = DATA.span;
const STEP = SPAN.step;          // us; what the filter of time moves by: the longest cell of any chart
const FIRST = Math.floor(SPAN.from / STEP) * STEP;
const END = SPAN.to + 1;         // us; the last instant is a part of the capture
const STEPS = Math.ceil((END - FIRST) / STEP);
const PER_OCTAVE = SPAN.per_octave;
const SHOWN_PER_OCTAVE = Math.min(4, PER_OCTAVE);
const MOST = 7;                  // routes with a colour of their own
const SLOWEST_SHOWN = 20;
const CONNECTIONS_SHOWN = 40;
const FACETS = 8;

const text = (index, none = "") => index === undefined || index === null || index < 0 ? none : NAMES[index];
const route = (index) => text(index, NO_ROUTE);
const peer = (index) => text(index) || UNKNOWN;
const words = (name) => name.replaceAll("_", " ");
const rows = (t) => Array.from({length: t.length}, (_, i) => i);

function index(name) {
  return NAMES.indexOf(name);
}

// ---- Numbers as people read them

function duration(us) {
  const [size, unit] = us >= 1e6 ? [1e6, "s"] : us >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  return `${trim(us / size)} ${unit}`;
}

function trim(value) {
  return value >= 1000 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
}

function count(n) {
  return Math.round(n).toLocaleString("en-US");
}

function rate(n) {
  return n >= 100 ? count(n) : trim(n);
}

function bytes(n) {
  const [size, unit] = n >= 1e9 ? [1e9, "GB"] : n >= 1e6 ? [1e6, "MB"] : n >= 1e3 ? [1e3, "kB"] : [1, "B"];
  return `${trim(n / size)} ${unit}`;
}

function percent(part, whole) {
  return whole ? `${trim(100 * part / whole)} %` : "–";
}

// As plotly reads it: without a zone, so that it stays in UTC.
function instant(us) {
  const whole = Math.floor(us / 1000);
  return new Date(whole).toISOString().slice(0, 23).replace("T", " ") + String(Math.floor(us - whole * 1000)).padStart(3, "0");
}

function clock(us, fraction = false) {
  return new Date(us / 1000).toISOString().slice(11, fraction ? 23 : 19);
}

const ONE_DAY = instant(SPAN.from).slice(0, 10) === instant(SPAN.to).slice(0, 10);
const when = (us, fraction = false) => (ONE_DAY ? "" : `${instant(us).slice(0, 10)} `) + clock(us, fraction);

function escaped(raw) {
  return String(raw).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

const shortened = (raw, most = 44) => raw.length <= most ? raw : `${raw.slice(0, most - 1)}…`;
const isNarrow = () => window.innerWidth < 700;

// A peer's text in a chart: shortened, and with its tags escaped, since plotly reads some.
function label(raw, most = isNarrow() ? 20 : 44) {
  return escaped(shortened(raw, most));
}

// ---- Elements

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "style" || name.startsWith("aria-") || name === "for" || name === "colspan" || name === "scope") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);

// ---- Filters

const chosen = {routes: null, peers: null, role: -1, interaction: -1, from: 0, to: STEPS};

const fromUs = () => FIRST + chosen.from * STEP;
const toUs = () => FIRST + chosen.to * STEP;
const hasRoute = (at) => chosen.routes === null || chosen.routes.has(at);
const hasPeer = (at) => chosen.peers === null || chosen.peers.has(at);
const hasRole = (at) => chosen.role === -1 || chosen.role === at;
const hasInteraction = (at) => chosen.interaction === -1 || chosen.interaction === at;
const hasTime = (us) => us >= fromUs() && us < toUs();

// Rows of a table that the filters leave. A table without a column is not filtered by it.
function left(t) {
  const found = [];
  const time = t.t_from;
  for (let i = 0; i < t.length; i++) {
    if (time && !hasTime(time[i])) continue;
    if (t.route && !hasRoute(t.route[i])) continue;
    if (t.peer && !hasPeer(t.peer[i])) continue;
    if (t.role && !hasRole(t.role[i])) continue;
    if (t.interaction && !hasInteraction(t.interaction[i])) continue;
    found.push(i);
  }
  return found;
}

function overlaps(start, end) {
  return end >= fromUs() && start < toUs();
}

// ---- Time: how much of a cell was covered

// Cells of `length` us in the chosen time: start, the part that the capture covers, its seconds, and whether it is cut:
// the capture covers the first and the last cell in part.
function cells(length) {
  const found = [];
  const first = Math.max(fromUs(), Math.floor(SPAN.from / length) * length);
  for (let start = first; start < Math.min(toUs(), END); start += length) {
    const from = Math.max(start, SPAN.from), to = Math.min(start + length, END);
    found.push({start, from, to, seconds: (to - from) / 1e6, cut: to - from < length});
  }
  return found;
}

// ---- Histograms and their percentiles

function addTo(map, key, n) {
  map.set(key, (map.get(key) || 0) + n);
}

function percentiles(histogram, shares) {
  const buckets = [...histogram.keys()].sort((a, b) => a - b);
  const total = buckets.reduce((sum, bucket) => sum + histogram.get(bucket), 0);
  return shares.map((share) => {
    let upto = 0;
    for (const bucket of buckets) {
      upto += histogram.get(bucket);
      if (upto >= total * share - 1e-9) return 2 ** ((bucket + 0.5) / PER_OCTAVE);
    }
    return null;
  });
}

// ---- Colours and what all charts share

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// The order of routes in the whole capture, so that a filter changes no colour.
const ROUTES = (() => {
  const sums = new Map();
  for (const i of rows(T.rate_cells)) addTo(sums, T.rate_cells.route[i], T.rate_cells.requests[i]);
  const busy = new Map();
  for (const t of [T.traffic_cells, T.connection_routes]) for (const i of rows(t)) addTo(busy, t.route[i], t.frames ? t.frames[i] : 0);
  for (const at of busy.keys()) if (!sums.has(at)) sums.set(at, 0);
  return [...sums].sort((a, b) => b[1] - a[1] || (busy.get(b[0]) || 0) - (busy.get(a[0]) || 0)
    || (route(a[0]) < route(b[0]) ? -1 : 1)).map(([at, n]) => ({at, n, name: route(at)}));
})();
const PEERS = (() => {
  const sums = new Map();
  for (const i of rows(T.rate_cells)) addTo(sums, T.rate_cells.peer[i], T.rate_cells.requests[i]);
  for (const i of rows(T.traffic_cells)) addTo(sums, T.traffic_cells.peer[i], 0);
  return [...sums].sort((a, b) => b[1] - a[1] || (peer(a[0]) < peer(b[0]) ? -1 : 1)).map(([at, n]) => ({at, n, name: peer(at)}));
})();
const INTERACTIONS = [...new Set(T.rate_cells.interaction || [])].sort((a, b) => text(a) < text(b) ? -1 : 1);
const RANK = new Map(ROUTES.map((found, rank) => [found.at, rank]));
const colour = (rank) => css(`c${Math.min(rank, MOST)}`);

// Sums by route, the busiest ones under their names and the rest together.
function routeGroup(at) {
  const rank = RANK.has(at) ? RANK.get(at) : MOST;
  return rank < MOST || ROUTES.length === MOST + 1 ? {key: at, rank, name: route(at)} : {key: "rest", rank: MOST, name: "all other routes"};
}

function axis(more = {}) {
  return {automargin: true, gridcolor: css("grid"), zerolinecolor: css("line"), linecolor: css("line"), ...more,
    ...(more.title ? {title: {text: more.title, standoff: 8}} : {})};
}

const DAY = instant(SPAN.from).slice(0, 10);

// Seconds between two marks on an axis of time.
const STRIDES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

function timeAxis({marks = isNarrow() ? 4 : 10, ...more} = {}) {
  const from = Math.max(fromUs(), SPAN.from), to = Math.min(toUs(), SPAN.to);
  const seconds = (to - from) / 1e6;
  const stride = STRIDES.find((one) => one * marks >= seconds) || 604800 * Math.ceil(seconds / marks / 604800);
  const tickformat = !ONE_DAY ? (stride < 86400 ? "%b %-d<br>%H:%M" : "%b %-d") : stride < 60 ? "%H:%M:%S" : "%H:%M";
  // Below some seconds plotly chooses well by itself.
  const ticks = seconds < 3 ? {nticks: marks} : {tick0: "2000-01-03", dtick: stride * 1000, tickformat};
  return axis({type: "date", title: ONE_DAY ? `time (UTC), ${DAY}` : "time (UTC)", range: [instant(from), instant(to)], ...ticks, ...more});
}

function durationAxis(low, high, more = {}) {
  const values = [];
  for (let power = Math.floor(Math.log10(Math.max(low, 1))); power <= Math.ceil(Math.log10(Math.max(high, 2))); power++) {
    values.push(10 ** power);
    if (Math.log10(high / low) < 2) values.push(2 * 10 ** power, 5 * 10 ** power);
  }
  values.sort((a, b) => a - b);
  const pad = 0.08 * Math.max(0.5, Math.log10(high / low));
  return axis({type: "log", tickvals: values, ticktext: values.map(duration), range: [Math.log10(low) - pad, Math.log10(high) + pad], ...more});
}

// An axis with a row for each name. Names may repeat once they are shortened, so that places are numbers.
function rowAxis(names) {
  return axis({tickvals: names.map((_, at) => at), ticktext: names, range: [names.length - 0.5, -0.5], showgrid: false, zeroline: false, fixedrange: true});
}

const byRow = (n) => 70 + 26 * Math.max(n, 2);

function layout(more) {
  return {
    font: {family: "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", size: 12, color: css("ink")},
    margin: {t: 10, r: 14, b: 44, l: 50}, height: isNarrow() ? 300 : 340, paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hoverlabel: {align: "left", namelength: -1},
    // A finger scrolls the page; a mouse chooses a time by dragging over a chart.
    dragmode: matchMedia("(pointer: coarse)").matches || isNarrow() ? false : "zoom", ...more,
  };
}

const PLOTLY = {responsive: true, displayModeBar: false, doubleClick: false};

// Bars over time, stacked by name: one for each cell of `length` us. `found` maps a key to {name, rank or colour, sums by
// start of a cell}, and `shown` gives the text of a height. A bar that is cut is hatched, and says so. A rate over some
// milliseconds may be very high: the axis ends at twice the highest of the bars that are whole.
function stackedOverTime(found, length, title, shown, {perSecond = false} = {}) {
  const bars = cells(length);
  const ordered = [...found.values()].sort((a, b) => a.rank - b.rank);
  const heights = bars.map(() => 0);
  const says = (bar) => bar.cut ? `, cut: ${duration(bar.to - bar.from)} of ${duration(length)}` : "";
  const data = ordered.map(({name, rank, sums, own}) => {
    const y = bars.map((bar) => (sums.get(bar.start) || 0) / (perSecond ? bar.seconds : 1));
    y.forEach((value, at) => { heights[at] += value; });
    return {
      type: "bar", name: label(name), marker: {color: own || colour(rank), pattern: {shape: bars.map((bar) => bar.cut ? "/" : "")}},
      x: bars.map((bar) => instant((bar.from + bar.to) / 2)), width: bars.map((bar) => (bar.to - bar.from) / 1000), y,
      customdata: bars.map((bar, at) => `${when(bar.from)} to ${when(bar.to)}: ${shown(y[at])}${says(bar)}`),
      hovertemplate: "%{customdata}",
    };
  });
  const whole = Math.max(...bars.map((bar, at) => bar.cut ? 0 : heights[at])), highest = Math.max(...heights);
  const range = whole && highest > 2 * whole ? {range: [0, 2 * whole]} : {rangemode: "tozero"};
  return {data, legend: ordered.map(({name, rank, own}) => [shortened(name), own || colour(rank)]), layout: {barmode: "stack", bargap: 0, xaxis: timeAxis(), yaxis: axis({title, fixedrange: true, ...range})}};
}

// ---- Charts: each returns plotly's data and layout, or null where nothing is left to show

function groupRates(t, which, group, n) {
  const found = new Map();
  for (const i of which) {
    const {key, name, rank, own} = group(i);
    if (!found.has(key)) found.set(key, {name, rank, own, sums: new Map()});
    addTo(found.get(key).sums, t.t_from[i], n(i));
  }
  return found;
}

// What the bars of the rate are coloured by: a group for a row of rate_cells.
const RATE_GROUPS = {
  route: (i) => routeGroup(T.rate_cells.route[i]),
  interaction: (i) => ranked(INTERACTIONS, T.rate_cells.interaction[i], (at) => words(text(at)), "all other interactions"),
  peer: (i) => ranked(PEERS.map((one) => one.at), T.rate_cells.peer[i], peer, "all other peers"),
};

function ranked(order, at, name, rest) {
  const rank = order.indexOf(at);
  return rank < MOST ? {key: at, rank, name: name(at)} : {key: "rest", rank: MOST, name: rest};
}

function drawRate() {
  const t = T.rate_cells;
  const which = left(t);
  if (!which.length) return null;
  const found = groupRates(t, which, RATE_GROUPS[byId("rate-by").value], (i) => t.requests[i]);
  return stackedOverTime(found, SPAN.bucket, "requests per second", (n) => `${rate(n)} requests/s`, {perSecond: true});
}

function drawLatency() {
  const t = T.latency_cells;
  const total = index("total");
  const found = new Map();
  for (const i of left(t)) {
    if (t.metric[i] !== total) continue;
    if (!found.has(t.t_from[i])) found.set(t.t_from[i], new Map());
    addTo(found.get(t.t_from[i]), t.bucket[i], t.n[i]);
  }
  if (!found.size) return null;
  const starts = [...found.keys()].sort((a, b) => a - b);
  const shares = [["p50", 0.5, "p50"], ["p95", 0.95, "p95"], ["p99", 0.99, "p99"]];
  const all = starts.map((start) => percentiles(found.get(start), shares.map(([, share]) => share)));
  const flat = all.flat();
  const data = shares.map(([name, , own], at) => ({
    type: "scatter", mode: starts.length > 120 ? "lines" : "lines+markers", name, x: starts.map((start) => instant(start + SPAN.latency / 2)),
    y: all.map((one) => one[at]), line: {color: css(own), width: 2}, marker: {size: 5},
    customdata: all.map((one) => duration(one[at])), hovertemplate: "%{x|%H:%M:%S} " + name + ": %{customdata}<extra></extra>",
  }));
  return {data, legend: shares.map(([name, , own]) => [name, css(own)]), layout: {xaxis: timeAxis(), yaxis: durationAxis(Math.min(...flat), Math.max(...flat), {title: "latency until the end", fixedrange: true})}};
}

function drawOutcomes() {
  const t = T.rate_cells;
  const which = left(t);
  const found = new Map();
  for (const [name, rank, own, column] of [["failed", 0, css("bad"), t.errors], ["cancelled", 1, css("c1"), t.cancels]]) {
    const sums = new Map();
    for (const i of which) if (column[i]) addTo(sums, t.t_from[i], column[i]);
    if (sums.size) found.set(name, {name, rank, own, sums});
  }
  if (!found.size) return null;
  return stackedOverTime(found, SPAN.bucket, "requests per second", (n) => `${rate(n)} requests/s`, {perSecond: true});
}

function drawHeatmaps() {
  const t = T.latency_cells;
  const metric = index(byId("heat-metric").value);
  const by = byId("heat-facet").value;
  const facets = new Map();
  const perShown = PER_OCTAVE / SHOWN_PER_OCTAVE;
  for (const i of left(t)) {
    if (t.metric[i] !== metric) continue;
    const key = by === "route" ? t.route[i] : by === "interaction" ? t.interaction[i] : -2;
    if (!facets.has(key)) facets.set(key, {key, n: 0, counts: new Map()});
    const facet = facets.get(key);
    facet.n += t.n[i];
    const bucket = Math.floor(t.bucket[i] / perShown);
    if (!facet.counts.has(bucket)) facet.counts.set(bucket, new Map());
    addTo(facet.counts.get(bucket), t.t_from[i], t.n[i]);
  }
  const ordered = [...facets.values()].sort((a, b) => b.n - a.n);
  const shown = ordered.slice(0, FACETS);
  const buckets = shown.flatMap((facet) => [...facet.counts.keys()]);
  if (!buckets.length) return [];
  const low = Math.min(...buckets), high = Math.max(...buckets);
  const most = Math.max(...shown.flatMap((facet) => [...facet.counts.values()].flatMap((line) => [...line.values()])));
  const from = Math.max(fromUs(), Math.floor(SPAN.from / SPAN.latency) * SPAN.latency);
  const starts = [];
  for (let start = from; start < Math.min(toUs(), END); start += SPAN.latency) starts.push(start);
  const y = Array.from({length: high - low + 1}, (_, at) => low + at);
  // The lower edge of a bucket stands half a row below its middle.
  const placeOf = (us) => SHOWN_PER_OCTAVE * Math.log2(us) - 0.5;
  const lowest = 2 ** (low / SHOWN_PER_OCTAVE), highest = 2 ** ((high + 1) / SHOWN_PER_OCTAVE);
  const marks = [1, 2, 5].flatMap((n) => Array.from({length: 10}, (_, power) => n * 10 ** power))
    .filter((us) => us >= 0.9 * lowest && us <= 1.1 * highest && (highest / lowest < 100 || Number.isInteger(Math.log10(us)))).sort((a, b) => a - b);
  const powers = [1, 3, 10, 30, 100, 300, 1e3, 1e4, 1e5, 1e6].filter((n) => n <= Math.max(most, 3));
  const figures = shown.map((facet) => {
    const z = y.map((bucket) => starts.map((start) => facet.counts.get(bucket)?.get(start) || null));
    const trace = {
      type: "heatmap", x: starts.map((start) => instant(start + SPAN.latency / 2)), y, xgap: starts.length < (isNarrow() ? 30 : 90) ? 1 : 0, ygap: isNarrow() || y.length > 40 ? 0 : 1,
      z: z.map((line) => line.map((n) => n === null ? null : Math.log10(n))), zmin: 0, zmax: Math.max(0.5, Math.log10(most)),
      colorscale: [[0, css("heat0")], [0.35, css("heat1")], [0.7, css("heat2")], [1, css("heat3")]], hoverongaps: false,
      customdata: z.map((line, at) => line.map((n, place) => n === null ? "" : `${when(starts[place])}, ${duration(2 ** (y[at] / SHOWN_PER_OCTAVE))} to ${duration(2 ** ((y[at] + 1) / SHOWN_PER_OCTAVE))}: ${count(n)} requests`)),
      hovertemplate: "%{customdata}<extra></extra>",
      colorbar: {title: {text: "requests", side: "right"}, thickness: 10, len: 1, tickvals: powers.map(Math.log10), ticktext: powers.map(count), outlinewidth: 0, x: 1.01, xpad: 4},
    };
    const scale = axis({title: "latency", tickvals: marks.map(placeOf), ticktext: marks.map(duration), range: [low - 0.6, high + 0.6], fixedrange: true, showgrid: false, zeroline: false});
    return {facet, figure: {data: [trace], layout: {height: by === "all" ? 380 : 270, xaxis: timeAxis({showgrid: false, marks: isNarrow() ? 4 : 6}), yaxis: scale, margin: {t: 6, r: 6, b: 40, l: 50}}}};
  });
  figures.more = ordered.length - shown.length;
  return figures;
}

function heatTitle(key) {
  const by = byId("heat-facet").value;
  return by === "route" ? route(key) : by === "interaction" ? words(text(key)) : "All that is chosen";
}

function drawPercentiles() {
  const t = T.latency_cells;
  const total = index("total");
  const found = new Map();
  for (const i of left(t)) {
    if (t.metric[i] !== total) continue;
    const key = `${t.route[i]} ${t.interaction[i]} ${t.role[i]}`;
    if (!found.has(key)) found.set(key, {route: t.route[i], interaction: t.interaction[i], role: t.role[i], n: 0, histogram: new Map()});
    found.get(key).n += t.n[i];
    addTo(found.get(key).histogram, t.bucket[i], t.n[i]);
  }
  if (!found.size) return null;
  const ordered = [...found.values()].sort((a, b) => b.n - a.n).slice(0, 16);
  const routes = new Set(ordered.map((one) => one.route)), roles = new Set(ordered.map((one) => one.role));
  const names = ordered.map((one) => {
    const marks = [];
    if (routes.size < ordered.length / Math.max(1, roles.size)) marks.push(words(text(one.interaction)));
    if (roles.size > 1) marks.push(text(one.role));
    return label(route(one.route)) + (marks.length ? (isNarrow() ? "<br>" : " ") + `<i>${marks.join(", ")}</i>` : "");
  });
  const shares = [["p50", 0.5, "p50"], ["p95", 0.95, "p95"], ["p99", 0.99, "p99"], ["p99.9", 0.999, "p999"]];
  const all = ordered.map((one) => percentiles(one.histogram, shares.map(([, share]) => share)));
  const data = [{
    type: "scatter", mode: "lines", showlegend: false, hoverinfo: "skip", line: {color: css("line"), width: 4},
    x: all.flatMap((one) => [one[0], one[3], null]), y: all.flatMap((_, at) => [at, at, null]),
  }, ...shares.map(([name, , own], place) => ({
    type: "scatter", mode: "markers", name, x: all.map((one) => one[place]), y: all.map((_, at) => at),
    marker: {size: 12, color: css(own), line: {color: css("paper"), width: 1}},
    customdata: ordered.map((one, at) => `${label(route(one.route), 80)}, ${words(text(one.interaction))}, ${text(one.role)}: ${name} ${duration(all[at][place])} of ${count(one.n)} requests`),
    hovertemplate: "%{customdata}<extra></extra>",
  }))];
  const flat = all.flat();
  return {data, legend: shares.map(([name, , own]) => [name, css(own)]), layout: {height: byRow(ordered.length), yaxis: rowAxis(names), xaxis: durationAxis(Math.min(...flat), Math.max(...flat), {title: "latency until the end", fixedrange: true})}};
}

function drawCredit() {
  const t = T.rate_cells;
  const found = new Map();
  for (const i of left(t)) {
    if (!t.credit_us[i]) continue;
    const key = `${t.route[i]} ${t.role[i]}`;
    if (!found.has(key)) found.set(key, {route: t.route[i], role: t.role[i], stall: 0, time: 0, stalled: 0});
    const one = found.get(key);
    one.stall += t.stall_us[i];
    one.time += t.credit_us[i];
    one.stalled += t.stalled[i];
  }
  const ordered = [...found.values()].filter((one) => one.stall > 0).sort((a, b) => b.stall - a.stall).slice(0, 16);
  if (!ordered.length) return null;
  const roles = new Set(ordered.map((one) => one.role));
  const names = ordered.map((one) => label(route(one.route), isNarrow() ? 16 : 30) + (roles.size > 1 ? ` <i>${text(one.role)}</i>` : ""));
  return {data: [{
    type: "bar", orientation: "h", x: ordered.map((one) => 100 * one.stall / one.time), y: ordered.map((_, at) => at),
    marker: {color: css("credit")}, text: ordered.map((one) => percent(one.stall, one.time)), textposition: "auto", cliponaxis: false,
    customdata: ordered.map((one) => `${label(route(one.route), 80)}: ${percent(one.stall, one.time)} of the time, ${duration(one.stall)} in ${count(one.stalled)} streams that waited`),
    hovertemplate: "%{customdata}<extra></extra>",
  }], layout: {height: byRow(ordered.length), yaxis: rowAxis(names), xaxis: axis({title: "% of the time without credit", rangemode: "tozero", fixedrange: true})}};
}

// Streams that waited for credit, and what their connection carried meanwhile.
function starvedStreams() {
  const t = T.starved;
  const found = new Map();
  for (const i of rows(t)) {
    if (!hasRoute(t.shown_route[i]) || !hasPeer(t.peer[i]) || !hasRole(t.role[i]) || !overlaps(t.t_start[i], t.t_end[i])) continue;
    const key = `${t.capture_id[i]} ${t.conn_id[i]} ${t.stream_id[i]} ${t.role[i]}`;
    if (!found.has(key)) found.set(key, {at: i, route: t.route[i], shown: t.shown_route[i], stall: t.stall_us[i], bytes: 0, by: []});
    const one = found.get(key);
    one.by.push({route: t.by_route[i], bytes: t.bytes[i]});
    one.bytes += t.bytes[i];
  }
  return [...found.values()].sort((a, b) => b.stall - a.stall);
}

function drawStarved() {
  const found = new Map();
  const kinds = new Map();
  for (const stream of starvedStreams()) {
    if (!found.has(stream.shown)) found.set(stream.shown, {route: stream.shown, stall: 0, by: new Map()});
    const one = found.get(stream.shown);
    one.stall += stream.stall;
    for (const {route: by, bytes: n} of stream.by) {
      const group = by === stream.shown ? {key: "own", rank: -1, name: "the same route"} : routeGroup(by);
      kinds.set(group.key, group);
      if (stream.bytes) addTo(one.by, group.key, stream.stall * n / stream.bytes);
    }
  }
  const ordered = [...found.values()].sort((a, b) => b.stall - a.stall).slice(0, 12);
  if (!ordered.length) return null;
  const groups = [...kinds.values()].sort((a, b) => a.rank - b.rank);
  const own = (rank) => rank < 0 ? css("queued") : colour(rank);
  const data = groups.map(({key, rank, name}) => ({
    type: "bar", orientation: "h", name: label(name, 28), marker: {color: own(rank)},
    y: ordered.map((_, at) => at), x: ordered.map((one) => (one.by.get(key) || 0) / 1e6),
    customdata: ordered.map((one) => `${label(route(one.route), 60)} waited ${duration(one.stall)}; of the bytes meanwhile ${percent(one.by.get(key) || 0, one.stall)} were of ${label(name, 60)}`),
    hovertemplate: "%{customdata}<extra></extra>",
  }));
  return {data, legend: groups.map(({name, rank}) => [shortened(name, 36), own(rank)]), layout: {barmode: "stack", height: byRow(ordered.length), yaxis: rowAxis(ordered.map((one) => label(route(one.route), isNarrow() ? 16 : 30))), xaxis: axis({title: "seconds waited for credit", rangemode: "tozero", fixedrange: true})}};
}

function drawErrors() {
  const t = T.error_cells;
  const which = left(t);
  if (!which.length) return null;
  const sums = new Map();
  const name = (i) => `${text(t.error_name[i])} 0x${(t.error_code[i] >>> 0).toString(16).toUpperCase()} (${text(t.level[i])})`;
  for (const i of which) addTo(sums, name(i), t.n[i]);
  const order = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a) || (a < b ? -1 : 1));
  const group = (i) => {
    const rank = order.indexOf(name(i));
    return rank < MOST ? {key: name(i), rank, name: name(i)} : {key: "rest", rank: MOST, name: "other codes"};
  };
  return stackedOverTime(groupRates(t, which, group, (i) => t.n[i]), SPAN.bucket, "ERROR frames", (n) => `${count(n)} frames`);
}

const ROUTES_OF = (() => {
  const t = T.connection_routes;
  const found = new Map();
  for (const i of rows(t)) {
    const key = `${t.capture_id[i]} ${t.conn_id[i]}`;
    if (!found.has(key)) found.set(key, new Set());
    found.get(key).add(t.route[i]);
  }
  return found;
})();

function drawConnections() {
  const t = T.connection_timeline;
  const which = rows(t).filter((i) => overlaps(t.t_start[i], t.t_end[i]) && hasPeer(t.shown_peer[i])
    && (chosen.routes === null || [...(ROUTES_OF.get(`${t.capture_id[i]} ${t.conn_id[i]}`) || [])].some(hasRoute)));
  if (!which.length) return null;
  which.sort((a, b) => t.t_start[a] - t.t_start[b]);
  const shown = which.slice(0, CONNECTIONS_SHOWN);
  const reasons = new Map();
  shown.forEach((i, place) => {
    const reason = text(t.close_reason[i], "not known");
    if (!reasons.has(reason)) reasons.set(reason, []);
    reasons.get(reason).push([i, place]);
  });
  const own = (reason, rank) => reason === "closed" ? css("c2") : colour([0, 1, 3, 4, 5, 6][rank % 6]);
  const data = [...reasons].map(([reason, found], rank) => ({
    type: "bar", orientation: "h", name: label(reason, 40), marker: {color: own(reason, rank)},
    base: found.map(([i]) => instant(t.t_start[i])), x: found.map(([i]) => Math.max(1, (t.t_end[i] - t.t_start[i]) / 1000)),
    y: found.map(([, place]) => place), width: 0.7,
    customdata: found.map(([i]) => `${label(peer(t.peer[i]), 60)}, connection ${label(text(t.conn_id[i]).slice(0, 8))}<br>${when(t.t_start[i])} to ${when(t.t_end[i])}, ${count(t.streams[i])} streams, resumed ${t.resume_count[i]} times<br>end: ${label(reason, 80)}`),
    hovertemplate: "%{customdata}<extra></extra>",
  }));
  const figure = {data, legend: [...reasons.keys()].map((reason, rank) => [shortened(reason), own(reason, rank)]), layout: {barmode: "overlay", height: 80 + 20 * Math.max(shown.length, 2), yaxis: rowAxis(shown.map((i) => label(peer(t.peer[i]), 26))), xaxis: timeAxis()}};
  figure.more = which.length - shown.length;
  return figure;
}

function drawTraffic() {
  const t = T.traffic_cells;
  const which = left(t);
  if (!which.length) return null;
  const found = groupRates(t, which, (i) => routeGroup(t.route[i]), (i) => t.bytes[i]);
  const figure = stackedOverTime(found, SPAN.size, "bytes per second", (n) => `${bytes(n)}/s`, {perSecond: true});
  figure.layout.yaxis.tickformat = "~s";
  figure.layout.yaxis.ticksuffix = "B";
  return figure;
}

function drawBusy(column, name) {
  const t = T.traffic_cells;
  const sums = new Map();
  let total = 0;
  for (const i of left(t)) {
    addTo(sums, t[column][i], t.frames[i]);
    total += t.frames[i];
  }
  const ordered = [...sums].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 10);
  if (!ordered.length) return null;
  return {data: [{
    type: "bar", orientation: "h", y: ordered.map((_, at) => at), x: ordered.map(([, n]) => 100 * n / total),
    marker: {color: column === "route" ? ordered.map(([at]) => colour(routeGroup(at).rank)) : css("c0")},
    text: ordered.map(([, n]) => percent(n, total)), textposition: "auto", cliponaxis: false,
    customdata: ordered.map(([at, n]) => `${label(name(at), 80)}: ${count(n)} frames, ${percent(n, total)}`), hovertemplate: "%{customdata}<extra></extra>",
  }], layout: {height: byRow(ordered.length), yaxis: rowAxis(ordered.map(([at]) => label(name(at), isNarrow() ? 18 : 30))), xaxis: axis({title: "% of the frames", rangemode: "tozero", fixedrange: true})}};
}

const PEER_OF = new Map(rows(T.connection_timeline).map((i) => [T.connection_timeline.conn_id[i], T.connection_timeline.peer[i]]));

function connectionName(at) {
  if (at === undefined || at < 0) return "all other connections";
  const known = PEER_OF.has(at) ? `${peer(PEER_OF.get(at))} ` : "";
  return `${known}${text(at).slice(0, 6)}`;
}

function drawSizes() {
  const t = T.size_cells;
  const which = left(t);
  if (!which.length) return null;
  const found = new Map();
  for (const i of which) {
    const name = text(t.frame_name[i]);
    if (!found.has(name)) found.set(name, {n: 0, sums: new Map()});
    found.get(name).n += t.n[i];
    addTo(found.get(name).sums, t.bucket[i], t.n[i]);
  }
  const buckets = which.map((i) => t.bucket[i]);
  let low = Infinity, high = -Infinity;
  for (const bucket of buckets) { low = Math.min(low, bucket); high = Math.max(high, bucket); }
  const x = Array.from({length: high - low + 1}, (_, at) => low + at);
  const ordered = [...found].sort((a, b) => b[1].n - a[1].n || (a[0] < b[0] ? -1 : 1));
  if (ordered.length > MOST + 1) {
    const rest = new Map();
    for (const [, {sums}] of ordered.splice(MOST)) for (const [bucket, n] of sums) addTo(rest, bucket, n);
    ordered.push(["other kinds", {sums: rest}]);
  }
  const data = ordered.map(([name, {sums}], rank) => ({
    type: "bar", name, marker: {color: colour(rank)}, x: x.map((_, at) => at), y: x.map((bucket) => sums.get(bucket) || 0),
    customdata: x.map((bucket) => `${name}: ${count(sums.get(bucket) || 0)} of ${bytes(2 ** bucket)} to ${bytes(2 ** (bucket + 1) - 1)}`),
    hovertemplate: "%{customdata}<extra></extra>",
  }));
  const every = Math.max(1, Math.ceil(x.length / (isNarrow() ? 5 : 10)));
  const ticks = x.map((_, at) => at).filter((at) => at % every === 0);
  return {data, legend: ordered.map(([name], rank) => [name, colour(rank)]), layout: {barmode: "stack", bargap: 0.08, xaxis: axis({title: "frame size, from", tickvals: ticks, ticktext: ticks.map((at) => bytes(2 ** x[at])), fixedrange: true}), yaxis: axis({title: "frames", rangemode: "tozero", tickformat: "~s", fixedrange: true})}};
}

// ---- The slowest requests, and how their time went

const FRAMES_OF = (() => {
  const t = T.slow_frames;
  const found = new Map();
  for (const i of rows(t)) {
    const key = `${t.capture_id[i]} ${t.conn_id[i]} ${t.stream_id[i]}`;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(i);
  }
  for (const list of found.values()) list.sort((a, b) => t.at_us[a] - t.at_us[b] || t.seq[a] - t.seq[b]);
  return found;
})();

function framesOf(i) {
  const t = T.slow_requests;
  return FRAMES_OF.get(`${t.capture_id[i]} ${t.conn_id[i]} ${t.stream_id[i]}`) || [];
}

// Parts of a request's time, in us after its first frame: [kind, from, to].
function waterfall(i) {
  const t = T.slow_requests, f = T.slow_frames;
  const total = t.total_us[i];
  const frames = framesOf(i);
  const asks = text(t.role[i]) === "requester" ? "out" : "in";
  const sent = Math.min(total, t.sent_us[i] ?? 0);
  const first = t.first_us[i] ?? total;
  const dry = [];
  let since = null;
  for (const at of frames) {
    const now = Math.min(Math.max(0, f.at_us[at]), total), name = text(f.frame_name[at]);
    const isAsker = text(f.dir[at]) === asks;
    const grants = isAsker && f.request_n[at] !== null;
    if (grants && f.request_n[at] > 0 && since !== null) {
      if (now > since) dry.push([since, now]);
      since = null;
    } else if (grants && f.request_n[at] === 0 && name !== "REQUEST_N") {
      since = now;
    } else if (!isAsker && f.credit_after[at] === 0 && since === null && f.is_item[at]) {
      since = now;
    }
  }
  // Credit that ended with the last item was wanted by nobody.
  if (since !== null && t.stall_us[i] > 0 && total > since && dry.reduce((sum, [a, b]) => sum + b - a, 0) < 0.99 * t.stall_us[i]) dry.push([since, total]);
  const parts = [];
  if (sent > 0) parts.push(["sent", 0, sent]);
  if (first > sent) parts.push(["queued", sent, first]);
  if (total > first) parts.push(["items", first, total]);
  for (const [from, to] of dry) parts.push(["credit", from, to]);
  if (t.first_us[i] !== null) parts.push(["mark", first, first]);
  parts.push(["mark", total, total]);
  return parts;
}

function bar(parts, whole) {
  const track = element("div", {className: "track"});
  for (const [kind, from, to] of parts) {
    const start = whole ? 100 * from / whole : 0;
    const style = kind === "mark" || kind === "in" || kind === "out"
      ? `left: min(${start.toFixed(3)}%, calc(100% - 2px))` : `left: ${start.toFixed(3)}%; width: ${(whole ? 100 * (to - from) / whole : 0).toFixed(3)}%`;
    track.append(element("i", {className: kind, style}));
  }
  return track;
}

function slowestRows() {
  const t = T.slow_requests;
  return rows(t).filter((i) => hasRoute(t.shown_route[i]) && hasPeer(t.peer[i]) && hasRole(t.role[i]) && hasInteraction(t.interaction[i])
    && hasTime(t.t_start[i])).sort((a, b) => t.total_us[b] - t.total_us[a]);
}

let slowestShown = SLOWEST_SHOWN;

function drawSlowest(place) {
  const t = T.slow_requests;
  const all = slowestRows();
  if (!all.length) return false;
  const shown = all.slice(0, slowestShown);
  const longest = t.total_us[shown[0]];
  const heads = [["began", ""], ["route", ""], ["interaction", ""], ["peer", ""], ["took", "n"], ["first item", "n"], ["no credit", "n"], ["outcome", ""], ["trace id", ""], ["", "fall"]];
  const body = element("tbody");
  for (const i of shown) {
    const outcome = text(t.outcome[i]);
    const trace = text(t.trace_id[i]);
    const row = element("tr", {className: "row"},
      element("td", {className: "extra", textContent: when(t.t_start[i], true)}),
      element("td", {className: "route", textContent: route(t.route[i]), title: route(t.route[i])}),
      element("td", {className: "extra", textContent: words(text(t.interaction[i]))}),
      element("td", {className: "extra", textContent: peer(t.peer[i]), title: peer(t.peer[i])}),
      element("td", {className: "n"}, element("b", {textContent: duration(t.total_us[i])})),
      element("td", {className: "n extra", textContent: t.first_us[i] === null ? "–" : duration(t.first_us[i])}),
      element("td", {className: "n extra", textContent: t.stall_us[i] ? duration(t.stall_us[i]) : "–"}),
      element("td", {className: outcome === "complete" ? "" : "bad", textContent: words(outcome)}),
      element("td", {className: "trace", title: trace}, element("code", {textContent: trace || "–"})),
      element("td", {className: "fall"}, bar(waterfall(i), longest)));
    const opener = element("button", {type: "button", className: "more", textContent: "▸", title: "Show its frames"});
    opener.setAttribute("aria-expanded", "false");
    row.children[1].prepend(opener);
    row.addEventListener("click", () => {
      if (String(getSelection())) return;       // a trace id is being marked, to copy it
      const open = row.classList.toggle("open");
      opener.setAttribute("aria-expanded", String(open));
      opener.textContent = open ? "▾" : "▸";
      if (open) row.after(detail(i));
      else row.nextElementSibling.remove();
    });
    body.append(row);
  }
  const head = element("tr", {}, ...heads.map(([name, kind]) => element("th", {textContent: name, className: kind, scope: "col"})));
  head.lastChild.textContent = `0 to ${duration(longest)}`;
  const made = element("table", {className: "slow"}, element("thead", {}, head), body);
  place.replaceChildren(element("div", {style: "overflow-x: auto"}, made));
  if (all.length > shown.length) {
    const more = element("button", {type: "button", textContent: `Show ${count(Math.min(20, all.length - shown.length))} more of ${count(all.length)}`, style: "margin-top: 10px"});
    more.addEventListener("click", () => { slowestShown += 20; drawSlowest(place); });
    place.append(more);
  }
  return true;
}

function detail(i) {
  const t = T.slow_requests, f = T.slow_frames;
  const total = t.total_us[i];
  const parts = waterfall(i);
  const frames = framesOf(i);
  const time = (kind) => parts.filter(([one]) => one === kind).reduce((sum, [, from, to]) => sum + to - from, 0);
  const lanes = element("div", {className: "lanes"});
  const lane = (name, shown, said) => lanes.append(element("span", {className: "name", textContent: name}), bar(shown, total), element("b", {textContent: said}));
  const of = (kind) => parts.filter(([one]) => one === kind);
  const ticks = element("div", {className: "ticks"});
  for (const share of isNarrow() ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) ticks.append(element("span", {textContent: duration(share * total), style: `left: ${100 * share}%`}));
  lane("request is sent", of("sent"), duration(time("sent")));
  lane("queued", of("queued"), duration(time("queued")));
  lane("no credit", of("credit"), duration(t.stall_us[i] || 0));
  lane("items", of("items").concat(of("mark")), duration(time("items")));
  for (const [dir, name] of [["out", "frames sent"], ["in", "frames received"]]) {
    const shown = frames.filter((at) => text(f.dir[at]) === dir);
    lane(name, shown.map((at) => [dir, f.at_us[at], f.at_us[at]]), count(shown.length));
  }
  lanes.append(element("span", {className: "name"}), ticks, element("span"));
  const facts = element("dl", {className: "facts"});
  const fact = (name, value, isCode = false) => facts.append(element("div", {}, element("dt", {textContent: `${name}: `}), element("dd", {}, isCode ? element("code", {textContent: value}) : value)));
  fact("first frame", when(t.t_start[i], true));
  fact("peer", peer(t.peer[i]));
  fact("interaction", words(text(t.interaction[i])));
  fact("connection", text(t.conn_id[i]), true);
  fact("stream", String(t.stream_id[i]), true);
  if (text(t.trace_id[i])) fact("trace id", text(t.trace_id[i]), true);
  fact("items in and out", `${count(t.n_in[i])}, ${count(t.n_out[i])}`);
  fact("bytes in and out", `${bytes(t.bytes_in[i])}, ${bytes(t.bytes_out[i])}`);
  if (t.error_code[i] !== null) fact("error code", `0x${(t.error_code[i] >>> 0).toString(16).toUpperCase()}`, true);
  if (frames.length) fact("frames", frames.map((at) => `${text(f.frame_name[at])} ${text(f.dir[at])} ${duration(Math.max(0, f.at_us[at]))}`).slice(0, 12).join(", ") + (frames.length > 12 ? ", …" : ""));
  return element("tr", {className: "detail"}, element("td", {colspan: "10"}, lanes, facts));
}

function drawStarvedStreams(place) {
  const t = T.starved;
  const all = starvedStreams().slice(0, 12);
  if (!all.length) return false;
  const body = element("tbody");
  for (const one of all) {
    const by = one.by.sort((a, b) => b.bytes - a.bytes).slice(0, 3).map((meanwhile) => `${route(meanwhile.route)} ${percent(meanwhile.bytes, one.bytes)}`).join(", ");
    body.append(element("tr", {}, element("td", {textContent: route(one.route), title: route(one.route)}),
      element("td", {className: "n", textContent: duration(one.stall)}), element("td", {textContent: by, title: by}),
      element("td", {textContent: when(t.t_start[one.at])}), element("td", {textContent: peer(t.peer[one.at])}),
      element("td", {className: "n", textContent: String(t.stream_id[one.at])})));
  }
  const heads = [["waiting route", ""], ["waited", "n"], ["bytes of its connection meanwhile", ""], ["since", ""], ["peer", ""], ["stream", "n"]];
  place.replaceChildren(element("div", {className: "scroll"}, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map(([name, kind]) => element("th", {textContent: name, className: kind, scope: "col"})))), body)));
  return true;
}

// ---- The figures at the head

function showCards() {
  const t = T.rate_cells, latency = T.latency_cells;
  let requests = 0, errors = 0, cancels = 0, stall = 0, credit = 0;
  for (const i of left(t)) {
    requests += t.requests[i];
    errors += t.errors[i];
    cancels += t.cancels[i];
    stall += t.stall_us[i] || 0;
    credit += t.credit_us[i] || 0;
  }
  const histogram = new Map();
  const total = index("total");
  for (const i of left(latency)) if (latency.metric[i] === total) addTo(histogram, latency.bucket[i], latency.n[i]);
  const [p50, p99] = percentiles(histogram, [0.5, 0.99]);
  const seconds = cells(SPAN.bucket).reduce((sum, cell) => sum + cell.seconds, 0);
  const show = (id, value, bad = false) => {
    byId(`card-${id}`).querySelector("b").textContent = value;
    byId(`card-${id}`).classList.toggle("bad", bad);
  };
  show("requests", count(requests));
  show("rate", seconds ? rate(requests / seconds) : "–");
  show("failed", percent(errors, requests), errors > 0);
  show("cancelled", percent(cancels, requests));
  show("p50", p50 ? duration(p50) : "–");
  show("p99", p99 ? duration(p99) : "–");
  show("stall", percent(stall, credit));
  const all = ROUTES.reduce((sum, one) => sum + one.n, 0);
  byId("shown").textContent = `Shown: ${count(requests)} of ${count(all)} requests that ended. `
    + (isNarrow() ? "" : "Drag over a chart to choose a time.");
}

// ---- Drawing everything

const CHARTS = {
  rate: drawRate, latency: drawLatency, outcomes: drawOutcomes, percentiles: drawPercentiles, credit: drawCredit, starved: drawStarved,
  errors: drawErrors, connections: drawConnections, traffic: drawTraffic,
  "busy-routes": () => drawBusy("route", route), "busy-connections": () => drawBusy("conn_id", connectionName),
  sizes: drawSizes,
};
const NOTHING = "Nothing of this kind in what is chosen.";

function nothing(place) {
  Plotly.purge(place);
  showLegend(place, []);
  place.replaceChildren(element("p", {className: "nothing", textContent: NOTHING}));
}

function show(place, figure) {
  if (place.querySelector(".nothing")) place.replaceChildren();
  Plotly.react(place, figure.data, layout(figure.layout), PLOTLY);
  showLegend(place, figure.legend || []);
  // After each drawing: an element that was purged has forgotten who listens.
  place.removeAllListeners?.("plotly_relayout");
  place.on?.("plotly_relayout", chooseTime);
  let more = place.parentElement.querySelector(".further");
  if (figure.more > 0) {
    if (!more) place.parentElement.append(more = element("p", {className: "further"}));
    more.textContent = `And ${count(figure.more)} more, which filters can bring to the front.`;
  } else if (more) more.remove();
}

// Not plotly's own: on a small screen it would cover the chart.
function showLegend(place, entries) {
  let legend = place.previousElementSibling;
  if (!legend?.classList.contains("legend")) place.before(legend = element("div", {className: "legend"}));
  legend.replaceChildren(...entries.map(([name, own]) => element("span", {}, element("i", {style: `background: ${own}`}), name)));
}

function chooseTime(change) {
  const from = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0], to = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1];
  if (typeof from !== "string" || typeof to !== "string") return;
  const at = (shown) => (Date.parse(`${shown.replace(" ", "T").slice(0, 23)}Z`) * 1000 - FIRST) / STEP;
  const start = Math.max(0, Math.min(STEPS - 1, Math.floor(at(from)))), end = Math.max(1, Math.min(STEPS, Math.ceil(at(to))));
  if (Number.isNaN(start) || Number.isNaN(end) || start >= end) return;
  chosen.from = start;
  chosen.to = end;
  changed();
}

function drawHeatmapSection() {
  const place = byId("plot-heatmap");
  const figures = drawHeatmaps();
  for (const plot of place.querySelectorAll(".plot")) Plotly.purge(plot);
  if (!figures.length) {
    place.replaceChildren(element("p", {className: "nothing", textContent: NOTHING}));
    return;
  }
  // All of them stand in their places before the first is drawn, so that each finds its width.
  const plots = figures.map(({facet}) => {
    const plot = element("div", {className: "plot"});
    plot.dataset.facet = heatTitle(facet.key);
    return plot;
  });
  place.replaceChildren(...figures.map(({facet}, at) => element("div", {style: "min-width: 0"},
    element("h3", {}, `${heatTitle(facet.key)} `, element("small", {textContent: `${count(facet.n)} requests`})), plots[at])));
  figures.forEach(({figure}, at) => show(plots[at], figure));
  if (figures.more > 0) place.append(element("p", {textContent: `And ${count(figures.more)} more, with fewer requests: choose them above.`}));
}

let drawing = 0;

// Draws one chart after the other, and lets the browser breathe between: a newer choice ends an older drawing.
async function draw() {
  const mine = ++drawing;
  delete document.documentElement.dataset.drawn;
  showCards();
  const steps = [
    ...["rate", "latency", "outcomes"].map((id) => () => drawOne(id)), drawHeatmapSection, () => drawOne("percentiles"),
    () => drawTable("slowest", drawSlowest), ...["credit", "starved"].map((id) => () => drawOne(id)),
    () => drawTable("starved-streams", drawStarvedStreams),
    ...["errors", "connections", "traffic", "busy-routes", "busy-connections", "sizes"].map((id) => () => drawOne(id)),
  ];
  for (const step of steps) {
    step();
    await new Promise((resolve) => setTimeout(resolve));
    if (mine !== drawing) return;
  }
  document.documentElement.dataset.drawn = String(mine);
}

function drawOne(id) {
  const place = byId(`plot-${id}`);
  const figure = CHARTS[id]();
  if (figure === null) nothing(place);
  else show(place, figure);
}

function drawTable(id, make) {
  const place = byId(`plot-${id}`);
  if (!make(place)) place.replaceChildren(element("p", {className: "nothing", textContent: NOTHING}));
}

// ---- The controls

function changed() {
  slowestShown = SLOWEST_SHOWN;
  showControls();
  draw();
}

function showControls() {
  byId("time-from").value = chosen.from;
  byId("time-to").value = chosen.to;
  const from = Math.max(fromUs(), SPAN.from), to = Math.min(toUs(), SPAN.to);
  byId("time-shown").textContent = `${when(from)} to ${when(to)} (${duration(Math.max(0, to - from))})`;
  byId("time-from").setAttribute("aria-valuetext", when(from));
  byId("time-to").setAttribute("aria-valuetext", when(to));
  for (const [id, set, all, one, many] of [["pick-route", chosen.routes, ROUTES, "route", "routes"], ["pick-peer", chosen.peers, PEERS, "peer", "peers"]]) {
    const pick = byId(id);
    const [only] = set && set.size === 1 ? set : [null];
    pick.querySelector("summary").textContent = set === null ? `All ${many} (${all.length})`
      : set.size === 1 ? all.find((found) => found.at === only).name : `${set.size} of ${all.length} ${all.length === 1 ? one : many}`;
    pick.classList.toggle("on", set !== null);
    for (const box of pick.querySelectorAll("input[type=checkbox]")) box.checked = set === null || set.has(Number(box.value));
  }
  byId("pick-role").value = String(chosen.role);
  byId("pick-interaction").value = String(chosen.interaction);
  byId("pick-role").classList.toggle("on", chosen.role !== -1);
  byId("pick-interaction").classList.toggle("on", chosen.interaction !== -1);
  byId("reset").disabled = !(chosen.routes || chosen.peers || chosen.role !== -1 || chosen.interaction !== -1 || chosen.from > 0 || chosen.to < STEPS);
}

// A list of boxes: a click on a name alone chooses nothing but that one.
function fillPick(id, all, key) {
  const pick = byId(id);
  const menu = pick.querySelector(".menu");
  const list = element("div", {className: "list"});
  const everything = element("button", {type: "button", textContent: "All"});
  const none = element("button", {type: "button", textContent: "None"});
  everything.addEventListener("click", () => { chosen[key] = null; changed(); });
  none.addEventListener("click", () => { chosen[key] = new Set(); changed(); });
  for (const found of all) {
    const box = element("input", {type: "checkbox", value: String(found.at), checked: true});
    box.addEventListener("change", () => {
      const set = chosen[key] ?? new Set(all.map((one) => one.at));
      if (box.checked) set.add(found.at);
      else set.delete(found.at);
      chosen[key] = set.size === all.length ? null : set;
      changed();
    });
    list.append(element("label", {}, box, element("span", {textContent: found.name}), element("i", {textContent: count(found.n)})));
  }
  menu.append(element("div", {className: "both"}, everything, none));
  if (all.length > 8) {
    const search = element("input", {type: "search", placeholder: "Find"});
    search.setAttribute("aria-label", "Find in this list");
    search.addEventListener("input", () => {
      for (const row of list.children) row.hidden = !row.textContent.toLowerCase().includes(search.value.toLowerCase());
    });
    menu.append(search);
  }
  menu.append(list);
}

function fillSelect(id, key, all, every) {
  const select = byId(id);
  select.append(element("option", {value: "-1", textContent: every}), ...all.map((at) => element("option", {value: String(at), textContent: words(text(at))})));
  select.hidden = all.length < 2;
  select.parentElement.hidden = all.length < 2;
  select.addEventListener("change", () => { chosen[key] = Number(select.value); changed(); });
}

function fillControls() {
  fillPick("pick-route", ROUTES, "routes");
  fillPick("pick-peer", PEERS, "peers");
  const distinct = (column) => [...new Set(column || [])].filter((at) => at >= 0).sort((a, b) => text(a) < text(b) ? -1 : 1);
  const roles = distinct(T.rate_cells.role);
  fillSelect("pick-role", "role", roles, "Requester and responder");
  fillSelect("pick-interaction", "interaction", distinct(T.rate_cells.interaction), "All interactions");
  // With both ends in one capture every request is there twice: one end is enough, until the other is asked for.
  if (DATA.both_sides && roles.length > 1) chosen.role = index("requester");
  for (const [id, other] of [["time-from", "to"], ["time-to", "from"]]) {
    const slider = byId(id);
    slider.max = String(STEPS);
    slider.addEventListener("input", () => {
      const at = Number(slider.value);
      if (other === "to") chosen.from = Math.min(at, chosen.to - 1);
      else chosen.to = Math.max(at, chosen.from + 1);
      changed();
    });
  }
  byId("reset").addEventListener("click", () => {
    Object.assign(chosen, {routes: null, peers: null, role: -1, interaction: -1, from: 0, to: STEPS});
    changed();
  });
  for (const id of ["heat-metric", "heat-facet"]) byId(id).addEventListener("change", drawHeatmapSection);
  byId("rate-by").addEventListener("change", () => drawOne("rate"));
  document.addEventListener("click", (event) => {
    for (const pick of document.querySelectorAll(".pick[open]")) if (!pick.contains(event.target)) pick.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const pick of document.querySelectorAll(".pick[open]")) pick.open = false;
  });
}

function showTheme() {
  for (const button of document.querySelectorAll("[data-theme-choice]")) {
    button.setAttribute("aria-pressed", String(button.dataset.themeChoice === (themeChoice || "system")));
  }
}

function fillTheme() {
  for (const button of document.querySelectorAll("[data-theme-choice]")) {
    button.addEventListener("click", () => {
      themeChoice = button.dataset.themeChoice === "system" ? null : button.dataset.themeChoice;
      try {
        if (themeChoice) localStorage.setItem("rsocket-trio-theme", themeChoice);
        else localStorage.removeItem("rsocket-trio-theme");
      } catch { /* some browsers keep nothing for files */ }
      applyTheme();
      showTheme();
      draw();
    });
  }
  systemIsDark.addEventListener("change", () => { applyTheme(); draw(); });
  showTheme();
}

let wasNarrow = isNarrow();
window.addEventListener("resize", () => {
  if (wasNarrow !== isNarrow()) {
    wasNarrow = isNarrow();
    draw();
  }
});

fillTheme();
fillControls();
showControls();
draw();
