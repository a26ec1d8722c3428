// Maps, drawn by Leaflet over packaged outlines; crowded points are gathered by Supercluster.
"use strict";
(() => {
  const { el, blocks, data, library, number } = geofix;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const GROUPS = { train: "--train", validation: "--validation", benchmark: "--benchmark", rejected: "--failed", "nothing found": "--none", truth: "--kept", guess: "--failed", picture: "--train", nearby: "--none" };
  const colour = (group) => css(GROUPS[group] || "--none");

  async function worldOutlines() { await geofix.script("assets/world.js"); return geofix.values.get("world"); }

  /** A Leaflet map with the outlines of countries. */
  async function world(place, options = {}) {
    const [land] = await Promise.all([worldOutlines(), library("leaflet", "leaflet.js", "leaflet.css")]);
    const map = L.map(place, { worldCopyJump: true, preferCanvas: true, minZoom: 1, maxZoom: 16, zoomSnap: 0.5, attributionControl: false, ...options });
    L.geoJSON(land, { interactive: false, style: { color: css("--border"), weight: 0.8, fillColor: css("--land"), fillOpacity: 1 } }).addTo(map);
    return map;
  }

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
            L.circleMarker([lat, lon], { radius: Math.min(7 + Math.sqrt(about.point_count), 26), color: css("--card"), weight: 1.5, fillColor: colour(most), fillOpacity: 0.8 })
              .bindTooltip(parts.join(", ")).on("click", () => map.setView([lat, lon], Math.min(index.getClusterExpansionZoom(about.cluster_id), 16))).addTo(layer);
          } else {
            L.circleMarker([lat, lon], { radius: 6, color: css("--card"), weight: 1, fillColor: colour(about.group), fillOpacity: 0.9 })
              .bindTooltip(`${about.label} · ${about.group}`).on("click", () => { if (about.link) location.hash = `/${about.link}`; }).addTo(layer);
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
      if (points.some((one) => one[2] === "truth") && points.some((one) => one[2] === "guess")) L.polyline(main.map((one) => [one[0], one[1]]), { color: css("--muted"), dashArray: "4 5", weight: 1.5 }).addTo(map);
      for (const [lat, lon, group, label] of points) L.circleMarker([lat, lon], { radius: group === "nearby" ? 4 : 7, color: css("--card"), weight: 1.5, fillColor: colour(group), fillOpacity: 0.95 }).bindTooltip(`${group}: ${label}`).addTo(map);
      new ResizeObserver(() => map.invalidateSize()).observe(place);
    })();
    const groups = [...new Set(points.map((one) => one[2]))];
    return el("div", {}, place, el("p", { class: "legend" }, groups.map((group) => el("span", {}, el("i", { class: "key", style: `background:${colour(group)}` }), group))));
  };
})();
