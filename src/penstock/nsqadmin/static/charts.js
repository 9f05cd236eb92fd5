// Draws every figure.chart with data from /charts, and updates it at every refresh event.
(() => {
  "use strict";

  const NAMES = {
    published: "published",
    finished: "finished",
    requeued: "requeued",
    timed_out: "timed out",
    depth: "depth",
    in_flight: "in flight",
    deferred: "deferred",
    latency_ms: "latency",
  };
  const HEIGHT = 148;
  let range = "minutes";

  // Resolved value of a CSS color variable in the current theme.
  const color = (name) => {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const resolved = getComputedStyle(probe).color;
    probe.remove();
    return resolved;
  };

  const short = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e9) return `${(value / 1e9).toPrecision(3)}B`;
    if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
    if (size >= 1e4) return `${(value / 1e3).toPrecision(3)}k`;
    return size >= 10 || Number.isInteger(value) ? Math.round(value).toString() : value.toFixed(1);
  };

  const axisLabel = (value) => (Math.abs(value) < 10 ? `${Number(value.toFixed(2))}` : short(value));

  // Without a pointer over the chart, its legend shows the latest values.
  const showLatest = (plot) => {
    if (plot.cursor.idx === null || plot.cursor.left < 0) {
      plot.setLegend({ idx: plot.data[0].length - 1 }, false);
    }
  };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.box = figure.querySelector(".plot");
      this.plot = null;
      this.data = null;
      new ResizeObserver(() => this.resize()).observe(this.box);
    }

    async load() {
      const url = `${this.figure.dataset.url}&span=${range}`;
      try {
        const response = await fetch(url, { headers: { Accept: "application/json" } });
        if (!response.ok) return;
        this.show(await response.json());
      } catch {
        // app.js shows that the page is not updating.
      }
    }

    show({ time, ...series }) {
      const names = Object.keys(series);
      this.data = [time, ...names.map((name) => series[name])];
      if (this.plot) this.plot.setData(this.data);
      else this.draw(names);
      showLatest(this.plot);
      const last = this.data.slice(1).map((values) => values.at(-1) ?? 0);
      this.figure.dataset.latest = last.join(",");
      this.figure.dataset.points = time.length;
    }

    draw(names) {
      this.names = names;
      const unit = this.figure.dataset.unit;
      const grid = { stroke: color("--line"), width: 1 };
      const axis = { stroke: color("--muted"), grid, ticks: { show: false }, font: "11px system-ui" };
      const lines = names.map((name, number) => ({
        label: NAMES[name],
        stroke: color(`--chart-${number + 1}`),
        fill: number === 0 ? color("--chart-fill") : undefined,
        width: 1.75,
        points: { show: false },
        value: (_, value) => short(value) + (unit && value !== null ? ` ${unit}` : ""),
      }));
      const options = {
        width: this.box.clientWidth,
        height: HEIGHT,
        cursor: { y: false, points: { size: 6 } },
        padding: [8, 28, 0, 0],
        hooks: { setCursor: [showLatest] },
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
        axes: [
          { ...axis, size: 26, space: 76, values: (_, splits) => splits.map((at) => clock(at)) },
          { ...axis, size: 46, space: 28, values: (_, splits) => splits.map(axisLabel) },
        ],
        series: [{ label: "time", value: (_, at) => (at ? clock(at, true) : "") }, ...lines],
      };
      this.plot = new uPlot(options, this.data, this.box);
    }

    redraw() {
      if (!this.plot) return;
      this.plot.destroy();
      this.plot = null;
      this.draw(this.names);
      showLatest(this.plot);
    }

    resize() {
      if (this.plot) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
    }
  }

  const clock = (seconds, withSeconds = false) =>
    new Date(1000 * seconds).toLocaleTimeString([], {
      hour: "2-digit",
      minute: "2-digit",
      second: withSeconds || range === "minutes" ? "2-digit" : undefined,
      hour12: false,
    });

  const charts = [...document.querySelectorAll("figure.chart")].map((each) => new Chart(each));
  const loadAll = () => charts.forEach((chart) => chart.load());
  loadAll();
  document.body.addEventListener("refresh", loadAll);
  document.body.addEventListener("theme", () => charts.forEach((chart) => chart.redraw()));

  for (const button of document.querySelectorAll("[data-range]")) {
    button.addEventListener("click", () => {
      range = button.dataset.range;
      for (const each of document.querySelectorAll("[data-range]")) {
        each.setAttribute("aria-pressed", String(each === button));
      }
      loadAll();
    });
  }
})();
