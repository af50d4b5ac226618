"use strict";
(async () => {
  const $ = (id) => document.getElementById(id);
  const packed = Uint8Array.from(atob($("data").textContent), (c) => c.charCodeAt(0));
  $("data").remove();
  const d = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  const N = d.t.length;
  const at = new Float64Array(N); // ns since the first packet
  for (let i = 0, sum = 0; i < N; i++) at[i] = sum += d.t[i];
  const F = { request: 1, fromB: 2, again: 4, lost: 8, gap: 16, late: 32, dup: 64, rnr: 128, seq: 256, fatal: 512, dropped: 1024, bad: 2048, stall: 4096, data: 8192, last: 16384 };
  const MATTERS = F.again | F.lost | F.gap | F.late | F.rnr | F.seq | F.fatal | F.dropped | F.bad | F.stall | F.last;
  const ROWS = 80; // of the ladder
  const of = d.Conns.map(() => []); // packets of each connection
  for (let i = 0; i < N; i++) of[d.c[i]].push(i);

  let conn = 0, dir = 0, from = 0, to = 1, top = 0, picked = -1, list = [], first = 0;
  const svgNS = "http://www.w3.org/2000/svg";
  const el = (name, attrs, ...kids) => {
    const e = document.createElement(name);
    for (const k in attrs) e.setAttribute(k, attrs[k]);
    e.append(...kids);
    return e;
  };
  const svg = (name, attrs, text) => {
    const e = document.createElementNS(svgNS, name);
    for (const k in attrs) e.setAttribute(k, attrs[k]);
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const digits = (v) => v < 10 ? v.toFixed(2) : v < 100 ? v.toFixed(1) : v.toFixed(0);
  const short = (ns) => ns < 1e3 ? ns.toFixed(0) + " ns" : ns < 1e6 ? digits(ns / 1e3) + " µs" : ns < 1e9 ? digits(ns / 1e6) + " ms" : digits(ns / 1e9) + " s";
  const what = (i) => {
    const f = d.f[i], words = [];
    if ((f & (MATTERS | F.dup)) && d.w[i]) words.push(d.texts[d.w[i]]);
    else if (f & F.gap) words.push("PSNs before it are missing");
    return words.join("; ");
  };
  // asked says whose requests a packet is about: 0 for A's, 1 for B's.
  const asked = (i) => {
    const b = d.f[i] & F.fromB ? 1 : 0;
    return d.f[i] & F.request ? b : 1 - b;
  };
  const firstAtOrAfter = (ns) => {
    let lo = 0, hi = list.length;
    while (lo < hi) {
      const m = (lo + hi) >> 1;
      if (at[list[m]] < ns) lo = m + 1; else hi = m;
    }
    return lo;
  };

  // The plot. Its shapes are one path a kind, one mark a pixel: as many packets as one likes.
  const M = { left: 64, right: 26, top: 10, bottom: 26, edge: 8 };
  let scale = null;
  const ticks = (lo, hi, n) => {
    const raw = Math.max((hi - lo) / n, 1e-9), p = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((k) => k * p).find((s) => s >= raw);
    const out = [];
    for (let v = Math.ceil(lo / step) * step; v <= hi; v += step) out.push(v);
    return out;
  };
  const kinds = {
    sent: { name: "sent", mark: (x, y) => `M${x - 1.5} ${y}h3` },
    again: { name: "sent again", mark: (x, y) => `M${x - 2.5} ${y}h5` },
    data: { name: "READ response", mark: (x, y) => `M${x - 1.5} ${y}h3` },
    ack: { name: "acknowledged", mark: null },
    lost: { name: "lost or dropped", mark: (x, y) => `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` },
    nak: { name: "NAK", mark: (x, y) => `M${x} ${y - 6}l5.5 9h-11z` },
    rnr: { name: "RNR NAK", mark: (x, y) => `M${x} ${y - 6}l5 6l-5 6l-5 -6z` },
    gap: { name: "not in the capture before it", mark: (x, y) => `M${x} ${y - 1}v14` },
  };
  const kindsOf = (i) => {
    const f = d.f[i], out = [];
    if (f & F.request) out.push(f & F.again ? "again" : "sent");
    else if (f & F.dropped) out.length = 0; // it had no effect
    else if (f & F.rnr) out.push("rnr");
    else if (f & (F.seq | F.fatal)) out.push("nak");
    else if (f & F.data) out.push("data");
    else out.push("ack");
    if (f & (F.lost | F.dropped | F.bad)) out.push("lost");
    if (f & F.gap) out.push("gap");
    return out;
  };
  function plot() {
    const width = Math.max(260, $("plot").clientWidth), height = width < 600 ? 300 : 360;
    const a = firstAtOrAfter(from), b = firstAtOrAfter(to + 1);
    let lo = Infinity, hi = -Infinity;
    for (let n = a; n < b; n++) {
      const i = list[n];
      if (asked(i) !== dir) continue;
      lo = Math.min(lo, d.p[i]);
      hi = Math.max(hi, d.p[i]);
    }
    if (lo > hi) { lo = 0; hi = 1; }
    const room = Math.max(1, (hi - lo) * 0.04);
    lo -= room; hi += room;
    const X = (ns) => M.left + M.edge + (ns - from) / (to - from) * (width - M.left - M.right - 2 * M.edge);
    const Y = (p) => height - M.bottom - (p - lo) / (hi - lo) * (height - M.top - M.bottom);
    scale = { X, Y, width, height, a, b };
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: b - a < 400 ? "few" : "many", "aria-label": "PSNs of requests and answers over time" });
    const clip = svg("clipPath", { id: "clip" });
    clip.append(svg("rect", { x: M.left, y: 0, width: width - M.left - M.right, height: height - M.bottom }));
    root.append(clip);
    const inside = svg("g", { "clip-path": "url(#clip)" });
    // Stalls lie below everything.
    for (let n = Math.max(1, a); n < Math.min(b + 1, list.length); n++) {
      if (!(d.f[list[n]] & F.stall)) continue;
      const x0 = X(at[list[n - 1]]), x1 = X(at[list[n]]);
      if (x1 - x0 < 0.5) continue;
      inside.append(svg("rect", { class: "p-stall", x: x0, y: 0, width: x1 - x0, height: height - M.bottom }));
      if (x1 - x0 > 52) inside.append(svg("text", { x: (Math.max(x0, M.left) + Math.min(x1, width - M.right)) / 2, y: M.top + 10, "text-anchor": "middle" }, short(at[list[n]] - at[list[n - 1]])));
    }
    for (const v of ticks(lo, hi, 6)) {
      if (v < 0 || v !== Math.round(v)) continue;
      root.append(svg("path", { class: "grid", d: `M${M.left} ${Y(v)}H${width - M.right}` }), svg("text", { x: M.left - 6, y: Y(v) + 4, "text-anchor": "end" }, "+" + v));
    }
    const t0 = at[list[0]];
    for (const v of ticks(from - t0, to - t0, Math.max(2, Math.floor(width / 130)))) {
      const x = X(v + t0);
      root.append(svg("path", { class: "grid", d: `M${x} ${height - M.bottom}v4` }), svg("text", { x, y: height - 8, "text-anchor": "middle" }, v < 0.5 ? "0" : short(v)));
    }
    root.append(inside);
    const paths = {}, seen = {}, count = {};
    for (const k in kinds) { paths[k] = []; seen[k] = new Set(); count[k] = 0; }
    let ackY = null;
    for (let n = a; n < b; n++) {
      const i = list[n];
      if (asked(i) !== dir) continue;
      const x = Math.round(X(at[i]) * 2) / 2, y = Math.round(Y(d.p[i]) * 2) / 2;
      for (const k of kindsOf(i)) {
        count[k]++;
        const key = x * 8192 + y;
        if (seen[k].has(key)) continue;
        seen[k].add(key);
        if (k !== "ack") { paths[k].push(kinds[k].mark(x, y)); continue; }
        if (d.f[i] & F.dup) continue;
        paths.ack.push(ackY === null ? `M${x} ${y}h1` : `H${x}V${y}`);
        ackY = y;
      }
    }
    for (const k in kinds) if (paths[k].length) inside.append(svg("path", { class: "p-" + k, d: paths[k].join("") }));
    inside.append(svg("circle", { class: "p-pick", r: 7, id: "pick", cx: -99, cy: -99 }), svg("rect", { class: "p-box", id: "box", y: 0, height: height - M.bottom, x: 0, width: 0 }));
    $("plot").replaceChildren(root);
    $("legend").replaceChildren();
    for (const k in kinds) {
      if (!count[k]) continue;
      const s = svg("svg", { viewBox: "0 0 18 12" });
      s.append(svg("path", { class: "p-" + k, d: kinds[k].mark ? kinds[k].mark(9, 6) : "M1 10H9V3H17" }));
      $("legend").append(el("span", {}, s, `${kinds[k].name} (${count[k].toLocaleString("en")})`));
    }
    if (list.some((i) => d.f[i] & F.stall)) {
      const s = svg("svg", { viewBox: "0 0 18 12" });
      s.append(svg("rect", { class: "p-stall", width: 18, height: 12 }));
      $("legend").append(el("span", {}, s, "stall"));
    }
    markPick();
  }
  function markPick() {
    const c = $("pick");
    if (!c || picked < 0 || !scale) return;
    const here = d.c[picked] === conn && asked(picked) === dir;
    c.setAttribute("cx", here ? scale.X(at[picked]) : -99);
    c.setAttribute("cy", here ? scale.Y(d.p[picked]) : -99);
  }
  const nearest = (x, y) => {
    let best = -1, dist = 900;
    for (let n = scale.a; n < scale.b; n++) {
      const i = list[n];
      if (asked(i) !== dir) continue;
      const dx = scale.X(at[i]) - x, dy = scale.Y(d.p[i]) - y, q = dx * dx + dy * dy;
      if (q < dist) { dist = q; best = i; }
    }
    return best;
  };
  const pos = (e) => {
    const r = $("plot").firstChild.getBoundingClientRect();
    return [(e.clientX - r.left) * scale.width / r.width, (e.clientY - r.top) * scale.height / r.height];
  };
  const timeAt = (x) => from + (x - M.left - M.edge) / (scale.width - M.left - M.right - 2 * M.edge) * (to - from);
  function span(a, b) {
    const lo = at[list[0]], hi = Math.max(at[list[list.length - 1]], lo + 1000);
    const w = Math.min(hi - lo, Math.max(1000, b - a));
    from = Math.max(lo, Math.min(a, hi - w));
    to = from + w;
    plot();
  }
  const zoom = (k) => {
    const here = picked >= 0 && at[picked] >= from && at[picked] <= to && d.c[picked] === conn ? at[picked] : (from + to) / 2;
    span(here - (here - from) * k, here + (to - here) * k);
  };
  let drag = null;
  $("plot").addEventListener("pointerdown", (e) => { drag = pos(e)[0]; });
  $("plot").addEventListener("pointermove", (e) => {
    if (!scale) return;
    const [x, y] = pos(e);
    if (drag !== null) {
      $("box").setAttribute("x", Math.min(drag, x));
      $("box").setAttribute("width", Math.abs(x - drag));
      return;
    }
    if (scale.b - scale.a > 200000) return;
    const i = nearest(x, y);
    $("hover").textContent = i < 0 ? "" : `${short(at[i] - first)}  ${d.f[i] & F.fromB ? "B > A" : "A > B"}  ${d.l[i]}  ${d.texts[d.w[i]]}`;
  });
  addEventListener("pointerup", (e) => {
    if (drag === null) return;
    const start = drag, [x, y] = pos(e);
    drag = null;
    $("box").setAttribute("width", 0);
    if (Math.abs(x - start) > 8) { span(timeAt(Math.min(start, x)), timeAt(Math.max(start, x))); return; }
    const i = nearest(x, y);
    if (i >= 0) pick(i);
  });
  $("plot").addEventListener("keydown", (e) => {
    const w = to - from;
    const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => span(-Infinity, Infinity), ArrowLeft: () => span(from - w / 4, to - w / 4), ArrowRight: () => span(from + w / 4, to + w / 4) }[e.key];
    if (act) { e.preventDefault(); act(); }
  });
  $("in").onclick = () => zoom(0.5);
  $("out").onclick = () => zoom(2);
  $("whole").onclick = () => span(-Infinity, Infinity);

  // The ladder: a window of the connection's packets.
  function row(n) {
    const i = list[n], f = d.f[i];
    let arrow = "arrow";
    if (f & F.fromB) arrow += " back";
    if (f & F.data) arrow += " data";
    if (f & (F.lost | F.dropped | F.bad | F.fatal)) arrow += " lost";
    else if (f & F.rnr) arrow += " rnr";
    else if (f & (F.again | F.seq | F.gap | F.late | F.dup)) arrow += " again";
    const head = f & (F.lost | F.dropped) ? "✕" : f & F.fromB ? "◀" : "▶";
    const b = el("button", { type: "button", class: "row", "data-packet": i },
      el("span", { class: "time" }, short(at[i] - first)),
      el("span", { class: arrow }, el("span", { class: "label" }, d.l[i]), el("span", { class: "head", "aria-label": f & F.fromB ? "from B" : "from A" }, head)),
      el("span", { class: "what" }, what(i)));
    if (i === picked) b.setAttribute("aria-current", "true");
    return el("div", { role: "listitem" }, b);
  }
  function ladder() {
    top = Math.max(0, Math.min(top, list.length - ROWS));
    const rows = [];
    for (let n = top; n < Math.min(top + ROWS, list.length); n++) {
      if (n > 0 && d.f[list[n]] & F.stall) rows.push(el("div", { role: "listitem", class: "pause" }, short(at[list[n]] - at[list[n - 1]]) + " nothing on the way"));
      rows.push(row(n));
    }
    $("ladder").replaceChildren(...rows);
    $("where").textContent = `${(top + 1).toLocaleString("en")} to ${Math.min(top + ROWS, list.length).toLocaleString("en")} of ${list.length.toLocaleString("en")}`;
  }
  const place = (i) => {
    let lo = 0, hi = list.length;
    while (lo < hi) {
      const m = (lo + hi) >> 1;
      if (list[m] < i) lo = m + 1; else hi = m;
    }
    return lo;
  };
  function pick(i, focus) {
    if (d.c[i] !== conn) choose(d.c[i]);
    picked = i;
    if (asked(i) !== dir && d.Conns[conn].Dirs[asked(i)].Sent) { dir = asked(i); $("dir").value = dir; summary(); plot(); }
    if (at[i] < from || at[i] > to) span(at[i] - (to - from) / 2, at[i] + (to - from) / 2);
    markPick();
    const n = place(i);
    if (n < top || n >= top + ROWS) top = n - (ROWS >> 2);
    ladder();
    const r = document.querySelector(`#ladder .row[data-packet="${i}"]`);
    if (focus && r) { r.focus({ preventScroll: true }); r.scrollIntoView({ block: "nearest" }); }
    fields(i);
  }
  $("ladder").addEventListener("click", (e) => {
    const r = e.target.closest(".row");
    if (r) pick(+r.dataset.packet, true);
  });
  $("ladder").addEventListener("keydown", (e) => {
    const r = e.target.closest(".row");
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[e.key];
    if (!r || !step) return;
    e.preventDefault();
    const n = place(+r.dataset.packet) + step;
    if (n >= 0 && n < list.length) pick(list[n], true);
  });
  const page = (n) => { top = n; ladder(); };
  $("first").onclick = () => page(0);
  $("earlier").onclick = () => page(top - ROWS + 5);
  $("later").onclick = () => page(top + ROWS - 5);
  const trouble = (step) => {
    for (let n = (picked >= 0 && d.c[picked] === conn ? place(picked) : step > 0 ? -1 : list.length) + step; n >= 0 && n < list.length; n += step) {
      if (d.f[list[n]] & MATTERS) { pick(list[n]); return; }
    }
  };
  $("trouble-next").onclick = () => trouble(1);
  $("trouble-before").onclick = () => trouble(-1);

  // All headers of a packet.
  function fields(i) {
    const out = [], groups = new Map([["packet", [["number", d.n[i]], ["time", short(at[i] - first)], ["from", d.f[i] & F.fromB ? d.Conns[conn].B : d.Conns[conn].A]]]]);
    const add = (g, k, v) => { if (!groups.has(g)) groups.set(g, []); groups.get(g).push([k, v]); };
    const flags = [];
    for (const m of d.h[i].matchAll(/([a-z0-9_.]+)=((?:[^ (]|\([^)]*\))*)|(\S+)/g)) {
      if (m[3]) { flags.push(m[3]); continue; }
      const dot = m[1].indexOf(".");
      if (dot > 0) add(m[1].slice(0, dot), m[1].slice(dot + 1), m[2]);
      else add(["pkey", "tver", "resv6", "resv7"].includes(m[1]) ? "bth" : "data", m[1], m[2]);
    }
    if (flags.length) add("bth", "flags", flags.join(" "));
    out.push(el("p", {}, el("strong", {}, d.l[i])));
    if (d.w[i]) out.push(el("p", {}, d.texts[d.w[i]]));
    if (d.o[i]) out.push(el("p", { class: "small" }, d.texts[d.o[i]]));
    for (const [g, list] of groups) {
      const dl = el("dl", {});
      for (const [k, v] of list) dl.append(el("dt", {}, k), el("dd", {}, String(v)));
      out.push(el("h3", {}, g), dl);
    }
    $("fields").replaceChildren(...out);
    $("detail").classList.add("open");
  }

  $("close").onclick = () => {
    $("detail").classList.remove("open");
    document.querySelector('#ladder .row[aria-current="true"]')?.focus();
  };

  function events() {
    const c = d.Conns[conn];
    const rows = (c.Events || []).map((e) => el("button", { type: "button", class: "event", "data-packet": e.Packet },
      el("span", { class: "time" }, short(at[e.Packet] - first)), el("span", { class: "kind" }, e.Kind), el("span", { class: "words" }, e.Text)));
    if (!rows.length) rows.push(el("p", { class: "small" }, "None."));
    if (c.More) rows.push(el("p", { class: "small" }, `${c.More.toLocaleString("en")} more: "Next trouble" finds them.`));
    $("events").replaceChildren(...rows);
  }
  function summary() {
    $("dir-summary").textContent = d.Conns[conn].Dirs[dir].Summary || "";
  }
  function choose(n) {
    conn = n;
    list = of[n];
    first = at[list[0]];
    const c = d.Conns[n];
    $("conn").value = n;
    dir = c.Dirs[1].Sent > 0 && !c.Dirs[0].Sent ? 1 : 0;
    $("dir").value = dir;
    $("dir").closest("label").hidden = !(c.Dirs[0].Sent && c.Dirs[1].Sent);
    $("end-a").textContent = "A " + c.A;
    $("end-b").textContent = "B " + c.B;
    for (const k of document.querySelectorAll(".card")) k.classList.toggle("chosen", +k.dataset.conn === n && d.Conns.length > 1);
    top = 0;
    summary();
    span(-Infinity, Infinity);
    ladder();
    events();
  }
  document.addEventListener("click", (e) => {
    const b = e.target.closest(".choose, .show, .event");
    if (!b) return;
    if (b.matches(".choose")) { choose(+b.dataset.conn); $("view").scrollIntoView(); return; }
    const i = +b.dataset.packet;
    pick(i);
    const w = Math.max((to - from) / 8, 1e6);
    if (to - from > 8e6) span(at[i] - w / 2, at[i] + w / 2);
    $("plot-title").scrollIntoView();
  });
  $("conn").onchange = () => choose(+$("conn").value);
  $("dir").onchange = () => { dir = +$("dir").value; summary(); plot(); };
  let resized;
  addEventListener("resize", () => { cancelAnimationFrame(resized); resized = requestAnimationFrame(plot); });
  $("view").hidden = false;
  const start = document.querySelector(".card");
  choose(start ? +start.dataset.conn : 0);
  document.body.dataset.ready = "yes";
})();
