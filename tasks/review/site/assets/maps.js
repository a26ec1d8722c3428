// Maps, drawn by Leaflet over packaged outlines; crowded points are gathered by Supercluster.
"use strict";
(() => {
  const { el, blocks, data, library, number } = geofix;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const GROUPS = { train: "--train", validation: "--validation", benchmark: "--benchmark", rejected: "--failed", "nothing found": "--none", truth: "--kept", guess: "--failed", agent: "--benchmark", picture: "--train", nearby: "--none", within: "--kept", outside: "--failed", "not given": "--none", plain: "--none", added: "--benchmark" };
  const NAMED_FROM = 5; // zoom from which on single points have their names beside them
  const colour = (group) => css(GROUPS[group] || "--none");

  async function worldOutlines() { await geofix.script("assets/world.js"); return geofix.values.get("world"); }

  const regions = new Intl.DisplayNames(["en"], { type: "region" });
  let named = null; // largest country first

  /** Where each country's name stands: in the middle of its largest part, whose width says from which zoom on. */
  function countries(land) {
    const parts = (shape) => (shape.type === "Polygon" ? [shape.coordinates] : shape.coordinates);
    named ||= land.features.filter((one) => /^[A-Z]{2}$/.test(one.properties.code)).map((one) => {
      const sized = parts(one.geometry).map(([ring]) => {
        let area = 0, x = 0, y = 0;
        for (let at = 0; at < ring.length - 1; at += 1) {
          const [x0, y0] = ring[at], [x1, y1] = ring[at + 1], cross = x0 * y1 - x1 * y0;
          area += cross; x += (x0 + x1) * cross; y += (y0 + y1) * cross;
        }
        return { area: Math.abs(area), lat: y / (3 * area), lon: x / (3 * area), wide: Math.max(...ring.map((p) => p[0])) - Math.min(...ring.map((p) => p[0])) };
      });
      return { name: regions.of(one.properties.code), ...sized.sort((a, b) => b.area - a.area)[0] };
    }).sort((a, b) => b.area - a.area);
    return named;
  }

  /** Names of countries that are wide enough for them, none over another. */
  function nameCountries(map, land) {
    const layer = L.layerGroup().addTo(map);
    const paint = () => {
      layer.clearLayers();
      const taken = [], box = map.getBounds().pad(0.1), scale = (256 * 2 ** map.getZoom()) / 360;
      for (const { name, lat, lon, wide } of countries(land)) {
        const width = 6.2 * name.length + 8;
        if (wide * scale < width || !box.contains([lat, lon])) continue;
        const { x, y } = map.latLngToContainerPoint([lat, lon]);
        if (taken.some((one) => Math.abs(one.x - x) < (one.width + width) / 2 && Math.abs(one.y - y) < 14)) continue;
        taken.push({ x, y, width });
        L.marker([lat, lon], { interactive: false, keyboard: false, zIndexOffset: -10000, icon: L.divIcon({ className: "country", html: el("span", {}, name) }) }).addTo(layer);
      }
    };
    map.on("zoomend moveend resize", paint);
  }

  /** A Leaflet map with the outlines and names of countries. */
  async function world(place, options = {}) {
    const [land] = await Promise.all([worldOutlines(), library("leaflet", "leaflet.js", "leaflet.css")]);
    const map = L.map(place, { worldCopyJump: true, preferCanvas: true, minZoom: 1, maxZoom: 16, zoomSnap: 0.5, attributionControl: false, ...options });
    L.geoJSON(land, { interactive: false, style: { color: css("--border"), weight: 0.8, fillColor: css("--land"), fillOpacity: 1 } }).addTo(map);
    nameCountries(map, land);
    return map;
  }

  geofix.world = world;

  blocks.points = (block) => {
    const place = el("div", { class: "map", role: "application", "aria-label": `${block.title}: map with ${block.rows.length} points` });
    const groups = [...new Set(block.rows.map((row) => row[2]))].sort();
    const shown = new Set(groups);
    let redraw = () => {};
    const legend = el("p", { class: "legend" }, groups.map((group) => el("label", {}, el("input", { type: "checkbox", checked: true, onchange: (event) => { event.target.checked ? shown.add(group) : shown.delete(group); redraw(); } }), el("i", { class: "key", style: `background:${colour(group)}` }), `${group} (${number(block.rows.filter((row) => row[2] === group).length)})`)));
    (async () => {
      const map = (await world(place)).setView([20, 8], place.clientWidth < 600 ? 1 : 2);
      await library("supercluster", "supercluster.min.js");
      const layer = L.layerGroup().addTo(map);
      let index = null;
      const gather = () => {
        index = new Supercluster({ radius: 34, maxZoom: 14, map: (row) => ({ [row.group]: 1 }), reduce: (sum, more) => { for (const [group, count] of Object.entries(more)) sum[group] = (sum[group] || 0) + count; } });
        index.load(block.rows.filter((row) => shown.has(row[2])).map((row) => ({ type: "Feature", geometry: { type: "Point", coordinates: [row[1], row[0]] }, properties: { group: row[2], label: row[3], link: row[4] } })));
      };
      const paint = () => {
        layer.clearLayers();
        const box = map.getBounds();
        for (const point of index.getClusters([box.getWest(), box.getSouth(), box.getEast(), box.getNorth()], Math.round(map.getZoom()))) {
          const [lon, lat] = point.geometry.coordinates, about = point.properties;
          if (about.cluster) {
            const parts = groups.filter((group) => about[group]).map((group) => `${about[group]} ${group}`);
            const most = groups.filter((group) => about[group]).sort((one, other) => about[other] - about[one])[0];
            const side = Math.round(Math.min(20 + 3 * Math.sqrt(about.point_count), 52));
            const disc = el("div", { class: "cluster", style: `--c:${colour(most)};width:${side}px;height:${side}px` }, String(about.point_count_abbreviated));
            L.marker([lat, lon], { alt: parts.join(", "), icon: L.divIcon({ className: "", iconSize: [side, side], html: disc }) })
              .bindTooltip(parts.join(", ")).on("click", () => map.setView([lat, lon], Math.min(index.getClusterExpansionZoom(about.cluster_id), 16))).addTo(layer);
          } else {
            const near = map.getZoom() >= NAMED_FROM;
            L.circleMarker([lat, lon], { radius: 6, color: css("--card"), weight: 1, fillColor: colour(about.group), fillOpacity: 0.9 })
              .bindTooltip(near ? about.label : `${about.label} · ${about.group}`, near ? { permanent: true, direction: "right", offset: [6, 0], className: "name" } : {}).on("click", () => { if (about.link) location.hash = `/${about.link}`; }).addTo(layer);
          }
        }
      };
      redraw = () => { gather(); paint(); };
      redraw();
      map.on("moveend", paint);
      new ResizeObserver(() => map.invalidateSize()).observe(place);
    })();
    return el("section", {}, legend, place);
  };

  /** A small map of a few points: [lat, lon, group, label]; a line joins truth and guess. */
  geofix.smallMap = (points) => {
    const place = el("div", { class: "map small", role: "img", "aria-label": points.map((one) => `${one[2]} at ${one[0].toFixed(3)}, ${one[1].toFixed(3)}`).join("; ") });
    (async () => {
      const map = await world(place, { scrollWheelZoom: false });
      const main = points.filter((one) => one[2] !== "nearby");
      const box = L.latLngBounds(main.map((one) => [one[0], one[1]]));
      map.fitBounds(box.pad(0.4), { maxZoom: 5 });
      if (points.some((one) => one[2] === "truth") && points.some((one) => one[2] === "guess")) for (const other of main.slice(1)) L.polyline([main[0], other].map((one) => [one[0], one[1]]), { color: css("--muted"), dashArray: "4 5", weight: 1.5 }).addTo(map);
      for (const [lat, lon, group, label] of points) L.circleMarker([lat, lon], { radius: group === "nearby" ? 4 : 7, color: css("--card"), weight: 1.5, fillColor: colour(group), fillOpacity: 0.95 }).bindTooltip(`${group}: ${label}`).addTo(map);
      new ResizeObserver(() => map.invalidateSize()).observe(place);
    })();
    const groups = [...new Set(points.map((one) => one[2]))];
    return el("div", {}, place, el("p", { class: "legend" }, groups.map((group) => el("span", {}, el("i", { class: "key", style: `background:${colour(group)}` }), group))));
  };
})();
