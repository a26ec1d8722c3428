// Marks of people: kept in the browser, saved as a file for `geofix review --import`, or sent to `geofix review --serve`.
"use strict";
(() => {
  const { el, blocks, image, link, values, served, command, onLake, number, thumbnail, original } = geofix;
  const key = () => `geofix-marks-${values.get("site").snapshot}`;
  let memory = null; // where the browser keeps nothing for pages opened from files

  function marks() {
    if (memory) return memory;
    try { memory = JSON.parse(localStorage.getItem(key()) || "{}"); } catch { memory = {}; }
    return memory;
  }
  function store() { try { localStorage.setItem(key(), JSON.stringify(memory)); } catch { /* the file is what counts */ } }

  async function mark(item, said, note) {
    marks()[item.id] = { image_id: item.id, sha256: item.sha256, label: item.label, mark: said, note: note || "", sampled: Boolean(item.sampled), marked_at: new Date().toISOString() };
    store();
    document.dispatchEvent(new CustomEvent("marked"));
    if (served()) await send();
  }

  const asFile = () => ({ format: "geofix-marks", version: 1, snapshot_id: values.get("site").snapshot, marks: Object.values(marks()) });

  async function send() {
    const answer = await fetch("marks", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asFile()) });
    const said = answer.ok ? "Sent to geofix." : `Not taken: ${await answer.text()}`;
    document.dispatchEvent(new CustomEvent("told", { detail: said }));
  }

  function save() {
    const url = URL.createObjectURL(new Blob([JSON.stringify(asFile(), null, 1)], { type: "application/json" }));
    const anchor = el("a", { href: url, download: `marks-${values.get("site").snapshot.slice(0, 12)}.json` });
    document.body.append(anchor);
    anchor.click();
    anchor.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  /** Buttons for one picture. */
  geofix.markButtons = (item) => {
    if (!item.label) return null;
    const right = el("button", { type: "button", class: "mark right" }, "Right"), wrong = el("button", { type: "button", class: "mark wrong" }, "Wrong");
    const note = el("input", { type: "text", placeholder: "what is wrong (optional)", "aria-label": "note", maxlength: 300, value: marks()[item.id]?.note || "" });
    const show = () => { const said = marks()[item.id]?.mark; right.setAttribute("aria-pressed", said === "right"); wrong.setAttribute("aria-pressed", said === "wrong"); };
    right.addEventListener("click", () => mark(item, "right", note.value).then(show));
    wrong.addEventListener("click", () => mark(item, "wrong", note.value).then(show));
    note.addEventListener("change", () => { const said = marks()[item.id]?.mark; if (said) mark(item, said, note.value); });
    document.addEventListener("marked", show);
    show();
    return el("div", { class: "marks", "data-id": item.id }, el("p", {}, "Is the label right? ", el("b", {}, item.label.replace(/; $/, ""))), el("div", { class: "row" }, right, wrong, note), savePanel());
  };

  function savePanel() {
    const said = el("span", { class: "muted", role: "status" });
    const button = el("button", { type: "button", class: "save", onclick: served() ? send : save }, served() ? "Send marks" : "Save marks to a file");
    const show = () => { const all = Object.values(marks()); said.textContent = `${number(all.length)} marked`; button.disabled = !all.length; };
    document.addEventListener("marked", show);
    document.addEventListener("told", (event) => { said.textContent = event.detail; });
    show();
    return el("p", { class: "row" }, button, said);
  }

  blocks.sample = (block) => {
    if (!block.items.length) return el("p", { class: "muted" }, "Nothing was kept, so there is nothing to mark.");
    let at = Math.max(0, block.items.findIndex((item) => !marks()[item.id]));
    const place = el("div", {}), bar = el("p", { class: "muted", role: "status" });
    const move = (to) => { at = (to + block.items.length) % block.items.length; show(); };
    const next = () => { const open = block.items.findIndex((item, n) => n > at && !marks()[item.id]); move(open >= 0 ? open : at + 1); };
    const show = () => {
      const item = { ...block.items[at], sampled: true };
      const done = block.items.filter((one) => marks()[one.id]), right = done.filter((one) => marks()[one.id].mark === "right").length;
      bar.textContent = `Picture ${at + 1} of ${block.items.length}. Marked here: ${done.length}, right: ${right}.`;
      place.replaceChildren(el("div", { class: "columns" },
        el("div", {}, el("button", { type: "button", class: "show", "aria-label": "Enlarge", onclick: () => geofix.enlarge(original(item.sha256, item.extension), thumbnail(item.id), item.title) }, image(item.id, item.title, { loading: "eager" })), el("p", { class: "credit" }, item.credit)),
        el("div", {}, el("h2", {}, item.title), el("p", {}, item.said), el("p", { class: "muted" }, item.taken ? `taken ${item.taken}` : ""), geofix.markButtons(item),
          el("p", { class: "row" }, el("button", { type: "button", onclick: () => move(at - 1) }, "← back"), el("button", { type: "button", onclick: () => move(at + 1) }, "skip →"), link(`picture/${item.id}`, "its history")))),
        item.lat === null ? "" : geofix.smallMap([[item.lat, item.lon, "picture", item.title]]));
      place.dataset.id = item.id;
      place.dataset.at = String(at);
    };
    geofix.keys = { r: () => mark({ ...block.items[at], sampled: true }, "right").then(next), w: () => mark({ ...block.items[at], sampled: true }, "wrong").then(next), ArrowRight: () => move(at + 1), ArrowLeft: () => move(at - 1) };
    show();
    return el("section", { class: "sample" }, bar, el("p", { class: "muted" }, "Keys: ", el("kbd", {}, "R"), " right, ", el("kbd", {}, "W"), " wrong, ", el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " move."), place,
      served() ? null : el("div", {}, el("p", { class: "muted" }, "Save the marks to a file, then bring them in:"), command(onLake("review --import marks.json"))));
  };

  document.addEventListener("keydown", (event) => {
    if (!geofix.keys || /INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName) || document.activeElement.closest?.(".map") || event.altKey || event.ctrlKey || event.metaKey) return;
    const act = geofix.keys[event.key];
    if (act) { event.preventDefault(); act(); }
  });
})();
