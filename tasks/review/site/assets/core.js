// The ground of the site: data that comes as scripts, elements made from text, addresses, vendored libraries.
"use strict";
window.geofix = (() => {
  const values = new Map(), scripts = new Map();
  const blocks = {}; // name -> (block, context) -> element; assets/blocks.js and others add to it
  const views = {}; // first word of the address -> (rest, query) -> element, for pages with an address of their own

  /** Called by data/<name>.js. */
  function push(name, value) { values.set(name, value); }

  /** Loads a script once. */
  function script(path) {
    if (!scripts.has(path)) {
      scripts.set(path, new Promise((resolve, reject) => {
        const node = document.createElement("script");
        node.src = path;
        node.onload = () => resolve();
        node.onerror = () => reject(new Error(`${path} is missing`));
        document.head.append(node);
      }));
    }
    return scripts.get(path);
  }

  /** The value that data/<name>.js pushes. */
  async function data(name) {
    if (!values.has(name)) await script(`data/${name}.js`);
    return values.get(name);
  }

  /** A vendored library, with its style sheet. */
  async function library(folder, file, style) {
    if (style && !document.querySelector(`link[data-style="${folder}"]`)) {
      document.head.append(el("link", { rel: "stylesheet", href: `assets/vendor/${folder}/${style}`, "data-style": folder }));
    }
    await script(`assets/vendor/${folder}/${file}`);
  }

  /** An element. Children are text or elements; text is never read as markup. */
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "class") node.className = value;
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
    return node;
  }

  /** Splits "#/pictures?country=France" into its words and its query. */
  function address() {
    const [path, query = ""] = decodeURI(location.hash.replace(/^#\/?/, "")).split("?");
    return { words: (path || "start").split("/"), query: new URLSearchParams(query) };
  }

  /** FNV-1a, as page.py computes it. */
  function chunkOf(id, chunks) {
    let state = 0x811c9dc5;
    for (const byte of new TextEncoder().encode(id)) state = Math.imul(state ^ byte, 0x01000193) >>> 0;
    return state % Math.max(chunks, 1);
  }

  const thumbnail = (id) => `pictures/${id.slice(0, 2)}/${id}.jpg`;
  const original = (sha256, extension) => `${served() ? "" : "../../"}images/${sha256.slice(0, 2)}/${sha256}.${extension}`;
  const served = () => location.protocol.startsWith("http");
  const link = (place, ...children) => el("a", { href: `#/${place}` }, ...children);

  /** A small picture; one that cannot be read says so. */
  function image(id, text, attributes = {}) {
    const node = el("img", { src: thumbnail(id), alt: text || id, loading: "lazy", decoding: "async", ...attributes });
    node.addEventListener("error", () => node.replaceWith(el("div", { class: "gone" }, "cannot be read")), { once: true });
    return node;
  }

  /** A line for the shell with a button that copies it. */
  function command(line) {
    const button = el("button", { type: "button", class: "copy", "aria-label": `Copy: ${line}` }, "copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(line);
        button.textContent = "copied";
      } catch {
        const range = document.createRange();
        range.selectNodeContents(button.previousSibling);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = "marked: Ctrl+C";
      }
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
    return el("div", { class: "command" }, el("code", {}, line), button);
  }

  const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);
  const onLake = (words) => `geofix ${words} --lake ${quote(values.get("site").lake)}`;
  const number = (value) => (typeof value === "number" ? value.toLocaleString("en-US", { maximumFractionDigits: 3 }) : value);
  const km = (value) => (value === null || value === undefined ? "unknown" : value < 1 ? `${Math.round(value * 1000)} m` : `${number(Math.round(value * 10) / 10)} km`);

  return { push, script, data, library, el, address, chunkOf, thumbnail, original, served, link, image, command, onLake, number, km, blocks, views, values };
})();
