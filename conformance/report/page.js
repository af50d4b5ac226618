(() => {
  "use strict";
  const $ = (id) => document.getElementById(id);
  const form = $("filter"), matrix = $("matrix");
  const rows = [...matrix.querySelectorAll("tr.case")];
  const bodies = [...matrix.tBodies];
  document.documentElement.classList.add("js");
  form.hidden = false;

  // The table's head stays below the filter, which has a height of its own on every screen.
  const measure = () => {
    const stays = getComputedStyle(form).position === "sticky";
    matrix.style.setProperty("--bar-height", (stays ? form.offsetHeight : 0) + "px");
  };
  addEventListener("resize", measure);
  measure();

  const filter = () => {
    const words = $("text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const section = $("section").value, result = $("result").value;
    const levels = new Set([...form.querySelectorAll("[name=level]:checked")].map((b) => b.value));
    let shown = 0;
    for (const body of bodies) {
      let any = false;
      const inSection = !section || body.dataset.section === section;
      for (const row of body.querySelectorAll("tr.case")) {
        const fits = inSection && levels.has(row.dataset.level) &&
          (!result || row.dataset.results.split(" ").includes(result)) &&
          words.every((w) => row.dataset.text.includes(w));
        row.hidden = !fits;
        any = any || fits;
        shown += fits;
      }
      body.hidden = !any;
    }
    $("shown").value = shown === rows.length ? `${shown} statements` : `${shown} of ${rows.length} statements`;
    $("nothing").hidden = shown > 0;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (e) => e.preventDefault());

  // One ladder is open at a time; the address names it, so that it can be passed on.
  let open = null, from = null;
  const cellOf = (id) => matrix.querySelector(`a[href="#${CSS.escape(id)}"]`) || matrix.querySelector(`a[href="#${id}"]`);
  const close = () => {
    if (!open) return;
    open.classList.remove("open");
    if (from) { from.setAttribute("aria-expanded", "false"); from.focus({ preventScroll: true }); }
    open = from = null;
    history.replaceState(null, "", location.pathname + location.search);
  };
  const show = (id) => {
    const article = $(id);
    if (!article || article.tagName !== "ARTICLE") return false;
    close();
    open = article;
    from = cellOf(id);
    if (from) from.setAttribute("aria-expanded", "true");
    article.classList.add("open");
    article.scrollTop = 0;
    article.focus({ preventScroll: true });
    history.replaceState(null, "", "#" + id);
    return true;
  };
  document.addEventListener("click", (e) => {
    const link = e.target.closest("a[href^='#']");
    if (!link) {
      if (open && !open.contains(e.target)) close();
      return;
    }
    e.preventDefault();
    if (link.classList.contains("close")) close();
    else show(link.getAttribute("href").slice(1));
  });
  // Escape closes; the arrows walk over the cells that are shown.
  const visible = () => [...matrix.querySelectorAll("tr.case:not([hidden]) td.cell")].filter((c) => !c.closest("tbody").hidden);
  const step = (cell, by) => {
    const cells = visible();
    for (let i = cells.indexOf(cell) + by; i >= 0 && i < cells.length; i += by) {
      const link = cells[i].querySelector("a");
      if (link) return link;
    }
    return null;
  };
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "Escape") { close(); return; }
    const at = open ? from : document.activeElement.closest && document.activeElement.closest("td.cell a");
    if (!at || e.target.closest("input, select, pre")) return;
    const columns = at.closest("tr").querySelectorAll("td.cell").length;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[e.key];
    if (!by) return;
    const next = step(at.closest("td"), by);
    if (!next) return;
    e.preventDefault();
    next.scrollIntoView({ block: "nearest" });
    if (open) show(next.getAttribute("href").slice(1));
    else next.focus();
  });
  addEventListener("hashchange", () => { if (!show(decodeURIComponent(location.hash.slice(1)))) close(); });
  if (location.hash) show(decodeURIComponent(location.hash.slice(1)));
})();
