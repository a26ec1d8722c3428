// All pictures, with filters and search (FlexSearch). Rows come as columns, in files of ten thousand.
"use strict";
(() => {
  const { el, blocks, data, library, image, number, address, values } = geofix;
  const FILTERS = [["status", "Status"], ["reason", "Reason"], ["country", "Country"], ["split", "Split"], ["kind", "Kind"], ["category", "Category"], ["licence", "Licence"], ["creator", "Creator"], ["source", "Source"], ["tier", "Tier"]];
  const CODED = ["kind", "status", "reason", "country", "region", "city", "split", "licence", "creator", "source", "tier"];
  const PAGE = 60;
  let store = null, index = null, indexing = null;

  /** Columns of all files as one; a coded column keeps its numbers. */
  async function load(chunks) {
    if (store) return store;
    const parts = await Promise.all(Array.from({ length: chunks }, (_, at) => data(`pictures-${at}`)));
    const rows = { count: 0, values: {}, at: {} };
    for (const name of CODED) { rows.values[name] = []; rows.at[name] = []; }
    for (const name of ["image_id", "score", "categories", "taken", "lat", "lon", "said"]) rows[name] = [];
    for (const part of parts) {
      for (const name of CODED) {
        const known = new Map(rows.values[name].map((value, at) => [value, at]));
        const moved = part[name].values.map((value) => { if (!known.has(value)) { known.set(value, rows.values[name].length); rows.values[name].push(value); } return known.get(value); });
        for (const at of part[name].at) rows.at[name].push(at < 0 ? -1 : moved[at]);
      }
      for (const name of ["image_id", "score", "categories", "taken", "lat", "lon", "said"]) for (const value of part[name]) rows[name].push(value);
      rows.count += part.image_id.length;
    }
    return (store = rows);
  }

  const text = (rows, name, at) => rows.values[name][rows.at[name][at]] ?? "";
  const title = (rows, at) => [...new Set([text(rows, "city", at), text(rows, "region", at), text(rows, "country", at)].filter(Boolean))].join(" · ") || "no address";

  /** The search index, built in slices so that the page stays usable meanwhile. */
  function indexed(rows) {
    if (!indexing) {
      indexing = (async () => {
        await library("flexsearch", "flexsearch.bundle.min.js");
        // Words by their beginnings, accents folded; every word of a query has to be there.
        const made = new FlexSearch.Index({ tokenize: "forward", resolution: 3 });
        for (let start = 0; start < rows.count; start += 2000) {
          for (let at = start; at < Math.min(start + 2000, rows.count); at++) made.add(at, [title(rows, at), text(rows, "creator", at), text(rows, "reason", at).replaceAll("_", " "), rows.said[at] || ""].join(" "));
          await new Promise((resolve) => setTimeout(resolve));
        }
        return (index = made);
      })();
    }
    return indexing;
  }

  /** Row numbers that pass the filters and the search, in order. */
  function find(rows, query) {
    const wanted = [];
    for (const [name] of FILTERS) {
      const value = query.get(name);
      if (!value) continue;
      if (name === "category") wanted.push((at) => (rows.categories[at] || []).includes(value));
      else { const code = value === "none" ? -1 : rows.values[name].indexOf(value); wanted.push((at) => rows.at[name][at] === code && (code >= 0 || value === "none")); }
    }
    const low = parseFloat(query.get("from")), high = parseFloat(query.get("to"));
    if (!Number.isNaN(low)) wanted.push((at) => rows.score[at] !== null && rows.score[at] >= low);
    if (!Number.isNaN(high)) wanted.push((at) => rows.score[at] !== null && rows.score[at] <= high);
    const words = (query.get("search") || "").trim();
    const keep = (at) => wanted.every((test) => test(at));
    if (words) {
      const id = rows.image_id.indexOf(words); // an id is found whole or by its beginning
      const begun = id < 0 && /^[0-9a-f]{6,}$/.test(words) ? rows.image_id.flatMap((one, at) => (one.startsWith(words) ? [at] : [])) : id < 0 ? [] : [id];
      return begun.length ? begun.filter(keep) : index ? index.search(words, { limit: rows.count }).filter(keep) : [];
    }
    const found = [];
    for (let at = 0; at < rows.count; at++) if (keep(at)) found.push(at);
    return found;
  }
  geofix.findPictures = async (query) => { await indexed(store); return find(store, query); }; // for the benchmark

  function card(rows, at) {
    const id = rows.image_id[at], status = text(rows, "status", at), score = rows.score[at];
    return el("a", { class: "card", href: `#/picture/${id}`, "data-id": id },
      image(id, `${text(rows, "kind", at)}: ${title(rows, at)}`),
      el("span", { class: "title" }, title(rows, at)),
      el("span", { class: "tags" }, el("span", { class: status.replace(" ", "-") }, text(rows, "reason", at).replaceAll("_", " ") || status), el("span", { class: text(rows, "split", at) }, text(rows, "split", at)), el("span", {}, text(rows, "kind", at)), score === null ? null : el("span", {}, `score ${number(score)}`)),
      el("code", { class: "id" }, id));
  }

  function select(rows, name, label, query, change) {
    const counts = new Map();
    if (name === "category") for (const list of rows.categories) for (const value of list || []) counts.set(value, (counts.get(value) || 0) + 1);
    else for (const code of rows.at[name]) { const value = code < 0 ? "none" : rows.values[name][code]; counts.set(value, (counts.get(value) || 0) + 1); }
    const given = query.get(name) || "";
    if (given && !counts.has(given)) counts.set(given, 0);
    if (counts.size < 2 && !given) return null;
    const options = [...counts].sort((one, other) => (name === "country" || name === "creator" ? one[0].localeCompare(other[0]) : other[1] - one[1]));
    const node = el("select", { id: `filter-${name}`, onchange: (event) => change(name, event.target.value) }, el("option", { value: "" }, "all"), options.map(([value, count]) => el("option", { value, selected: value === given }, `${value.replaceAll("_", " ")} (${number(count)})`)));
    return el("label", { class: "filter" }, label, node);
  }

  blocks.gallery = (block) => {
    const results = el("div", { class: "grid" }), said = el("p", { class: "muted", role: "status", "aria-live": "polite" }, "Loading…"), more = el("button", { type: "button", class: "more" }, "Show more");
    const meaning = el("p", { class: "words" });
    const bar = el("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() });
    const node = el("section", { class: "gallery" }, bar, meaning, said, results, more);
    (async () => {
      const query = address().query;
      const rows = await load(block.chunks);
      let found = [], shown = 0, started = 0;
      const show = () => {
        const next = found.slice(shown, shown + PAGE);
        results.append(...next.map((at) => card(rows, at)));
        shown += next.length;
        more.hidden = shown >= found.length;
      };
      const update = async () => {
        if (query.get("search") && !index) { said.textContent = "Preparing the search…"; await indexed(rows); }
        started = performance.now();
        found = find(rows, query);
        shown = 0;
        results.replaceChildren();
        show();
        node.dataset.searchMs = String(performance.now() - started);
        node.dataset.found = String(found.length);
        geofix.list = found.map((at) => rows.image_id[at]);
        said.textContent = found.length === rows.count ? `${number(rows.count)} pictures` : `${number(found.length)} of ${number(rows.count)} pictures`;
        meaning.textContent = block.meanings[query.get("reason")] || "";
        const kept = query.toString();
        // The reader may have gone to another page while the rows were loading: that address stays.
        if (address().words[0] === "pictures") history.replaceState(null, "", `#/pictures${kept ? `?${kept}` : ""}`);
      };
      const change = (name, value) => { if (value) query.set(name, value); else query.delete(name); update(); };
      let wait = 0;
      const box = el("input", { type: "search", id: "search", placeholder: "place, creator, words of the judge, id", value: query.get("search") || "", oninput: (event) => { clearTimeout(wait); const value = event.target.value; wait = setTimeout(() => change("search", value), 120); } });
      const score = (name, label) => el("label", { class: "filter short" }, label, el("input", { type: "number", id: `filter-${name}`, min: 0, max: 10, step: 0.5, value: query.get(name) || "", onchange: (event) => change(name, event.target.value) }));
      const reset = el("button", { type: "button", onclick: () => { for (const key of [...query.keys()]) query.delete(key); for (const field of bar.querySelectorAll("select, input")) field.value = ""; update(); } }, "Clear");
      bar.append(el("label", { class: "filter search" }, "Search", box), ...FILTERS.map(([name, label]) => select(rows, name, label, query, change)).filter(Boolean), score("from", "Score from"), score("to", "to"), reset);
      more.addEventListener("click", show);
      await update();
      indexed(rows); // while the reader looks at the first pictures
    })();
    return node;
  };

  /** Arrow keys go from picture to picture in any grid. */
  document.addEventListener("keydown", (event) => {
    const here = document.activeElement;
    if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(here.tagName)) { const box = document.getElementById("search"); if (box) { event.preventDefault(); box.focus(); } return; }
    if (!here.classList || !here.classList.contains("card")) return;
    const cards = [...here.parentElement.children], at = cards.indexOf(here);
    const wide = cards.filter((one) => one.offsetTop === cards[0].offsetTop).length;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide }[event.key];
    if (step && cards[at + step]) { event.preventDefault(); cards[at + step].focus(); }
  });
})();
