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
  /** Beside what another tab has stored meanwhile. */
  function store() {
    try { localStorage.setItem(key(), JSON.stringify({ ...JSON.parse(localStorage.getItem(key()) || "{}"), ...memory })); } catch { /* the file is what counts */ }
  }
  const changed = () => { store(); document.dispatchEvent(new CustomEvent("marked")); };
  const tell = (text) => document.dispatchEvent(new CustomEvent("told", { detail: text }));

  /** Notes the mark at once; the server gets it in its turn. */
  function mark(item, said, note) {
    marks()[item.id] = { image_id: item.id, sha256: item.sha256, label: item.label, mark: said, note: note || "", sampled: Boolean(item.sampled), marked_at: new Date().toISOString() };
    changed();
    send();
  }

  const asFile = (some, noted = []) => ({ format: "geofix-marks", version: 1, snapshot_id: values.get("site").snapshot, marks: some, notes: noted });
  const waiting = () => Object.values(marks()).filter((one) => !one.stored && !one.refused);
  let sending = false;

  /** Sends what waits, until nothing does: each mark is stored, or refused with a reason, when the server has said so. */
  async function send() {
    if (sending || !served()) return;
    sending = true;
    try {
      for (let some = waiting().slice(0, 500); some.length; some = waiting().slice(0, 500)) {
        let answer;
        try {
          answer = await fetch("marks", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asFile(some)) });
        } catch { /* no server */ }
        if (!answer || answer.status >= 500) {
          tell(`${number(waiting().length)} marks wait: geofix does not answer. They are kept here and sent again.`);
          await new Promise((resolve) => { setTimeout(resolve, 2000); });
          continue;
        }
        if (!answer.ok) { tell(`Not taken: ${await answer.text()}`); return; }
        const { outcomes } = await answer.json();
        some.forEach((one, at) => { // a mark that was changed meanwhile is another object, and still waits
          if (outcomes[at]) one.refused = outcomes[at]; else one.stored = true;
        });
        changed();
      }
    } finally { sending = false; }
  }
  window.addEventListener("beforeunload", (event) => { if (served() && values.has("site") && waiting().length) event.preventDefault(); });

  /** What became of a mark, where a server takes it. */
  function state(one) {
    if (!one || !served()) return "";
    return one.refused ? `not taken: ${one.refused}` : one.stored ? "stored" : "waiting";
  }

  function save() {
    const url = URL.createObjectURL(new Blob([JSON.stringify(asFile(Object.values(marks()), Object.values(notes())), null, 1)], { type: "application/json" }));
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
    const became = el("span", { class: "muted" });
    const show = () => { const said = marks()[item.id]?.mark; right.setAttribute("aria-pressed", said === "right"); wrong.setAttribute("aria-pressed", said === "wrong"); became.textContent = state(marks()[item.id]); };
    right.addEventListener("click", () => mark(item, "right", note.value));
    wrong.addEventListener("click", () => mark(item, "wrong", note.value));
    note.addEventListener("change", () => { const said = marks()[item.id]?.mark; if (said) mark(item, said, note.value); });
    document.addEventListener("marked", show);
    show();
    return el("div", { class: "marks", "data-id": item.id }, el("p", {}, "Is the label right? ", el("b", {}, item.label.replace(/; $/, ""))), el("div", { class: "row" }, right, wrong, note, became), savePanel());
  };

  // What a person writes about how the place is found: the material of a chain of thought.
  const LICENCES = ["CC BY 4.0", "CC BY-SA 4.0", "CC0 1.0"];
  const notesKey = () => `geofix-notes-${values.get("site").snapshot}`;
  let written = null;
  function notes() {
    if (!written) try { written = JSON.parse(localStorage.getItem(notesKey()) || "{}"); } catch { written = {}; }
    return written;
  }
  function keepNotes() { try { localStorage.setItem(notesKey(), JSON.stringify(notes())); } catch { /* the file is what counts */ } }

  /** Sends one note; what became of it as a sentence. */
  async function sendNote(one) {
    try {
      const answer = await fetch("marks", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asFile([], [one])) });
      if (!answer.ok) return `Not taken: ${await answer.text()}`;
      const [outcome] = (await answer.json()).note_outcomes;
      if (!outcome) one.stored = true;
      keepNotes();
      return outcome ? `Not taken: ${outcome}` : "Stored.";
    } catch { return "geofix does not answer: the notes are kept here, save them again."; }
  }

  /** The field for one picture. */
  geofix.noteField = (item) => {
    if (!item.label) return null;
    const known = notes()[item.id], became = el("span", { class: "muted", role: "status" }, known ? (known.stored ? "Stored." : "Kept in this browser.") : "");
    const text = el("textarea", { rows: 5, maxlength: 8000, "aria-label": "notes", placeholder: "What tells the country? What the region? What the place itself?" });
    text.value = known?.notes || "";
    const licence = el("select", { "aria-label": "licence" }, LICENCES.map((one) => el("option", { value: one }, one)));
    licence.value = known?.licence || LICENCES[0];
    const button = el("button", { type: "button", class: "note" }, "Save notes");
    const ready = () => { button.disabled = !text.value.trim(); };
    text.addEventListener("input", ready);
    button.addEventListener("click", async () => {
      const one = { image_id: item.id, sha256: item.sha256, notes: text.value.trim(), licence: licence.value, noted_at: new Date().toISOString() };
      notes()[item.id] = one;
      keepNotes();
      changed();
      became.textContent = served() ? await sendNote(one) : "Kept in this browser: “Save marks to a file” holds them too.";
    });
    ready();
    return el("div", { class: "marks notes", "data-id": item.id }, el("p", {}, el("b", {}, "How would you find this place?"), " Write down the clues and what they tell you, from the country to the spot. The notes are stored with your name and licence, and become a chain of thought to learn from."), text, el("p", { class: "row" }, button, el("label", {}, "I give them under ", licence), became));
  };

  function savePanel() {
    const said = el("span", { class: "muted", role: "status" });
    const button = el("button", { type: "button", class: "save", onclick: served() ? send : save }, served() ? "Send marks" : "Save marks to a file");
    const show = () => { const all = Object.values(marks()); said.textContent = `${number(all.length)} marked${served() ? `, ${number(all.filter((one) => one.stored).length)} stored` : ""}`; button.disabled = !(served() ? waiting() : [...all, ...Object.values(notes())]).length; };
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
    const next = () => { // the next open one, or one that was skipped; when none is open, the picture stays
      const open = (item) => !marks()[item.id], after = block.items.findIndex((item, n) => n > at && open(item));
      const to = after >= 0 ? after : block.items.findIndex(open);
      if (to >= 0) move(to); else count();
    };
    const count = () => {
      const done = block.items.map((one) => marks()[one.id]).filter(Boolean), right = done.filter((one) => one.mark === "right").length;
      const all = done.length === block.items.length ? " All are marked." : "", kept = served() ? ` Stored: ${done.filter((one) => one.stored).length}.` : "";
      bar.textContent = `Picture ${at + 1} of ${block.items.length}. Marked here: ${done.length}, right: ${right}.${kept}${all}`;
    };
    document.addEventListener("marked", count);
    const show = () => {
      const item = { ...block.items[at], sampled: true };
      count();
      place.replaceChildren(el("div", { class: "columns" },
        el("div", {}, el("button", { type: "button", class: "show", "aria-label": "Enlarge", onclick: () => geofix.enlarge(original(item.sha256, item.extension), thumbnail(item.id), item.title) }, image(item.id, item.title, { loading: "eager" })), el("p", { class: "credit" }, item.credit)),
        el("div", {}, el("h2", {}, item.title), el("p", {}, item.said), el("p", { class: "muted" }, item.taken ? `taken ${item.taken}` : ""), geofix.markButtons(item),
          el("p", { class: "row" }, el("button", { type: "button", onclick: () => move(at - 1) }, "← back"), el("button", { type: "button", onclick: () => move(at + 1) }, "skip →"), link(`picture/${item.id}`, "its history")))),
        item.lat === null ? "" : geofix.smallMap([[item.lat, item.lon, "picture", item.title]]));
      place.dataset.id = item.id;
      place.dataset.at = String(at);
    };
    const say = (said) => { mark({ ...block.items[at], sampled: true }, said); next(); };
    geofix.keys = { r: () => say("right"), w: () => say("wrong"), ArrowRight: () => move(at + 1), ArrowLeft: () => move(at - 1) };
    show();
    send(); // what an earlier visit left
    return el("section", { class: "sample" }, bar, el("p", { class: "muted" }, "Keys: ", el("kbd", {}, "R"), " right, ", el("kbd", {}, "W"), " wrong, ", el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " move."), place,
      served() ? null : el("div", {}, el("p", { class: "muted" }, "Save the marks to a file, then bring them in:"), command(onLake("review --import marks.json"))));
  };

  document.addEventListener("keydown", (event) => {
    if (!geofix.keys || /INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName) || document.activeElement.closest?.(".map") || event.altKey || event.ctrlKey || event.metaKey) return;
    const act = geofix.keys[event.key] || geofix.keys[event.key.toLowerCase()];
    if (act && event.repeat && !event.key.startsWith("Arrow")) return; // a key that is held down marks once
    if (act) { event.preventDefault(); act(); }
  });
})();
