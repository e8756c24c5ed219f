/** Charts over time. Beside the canvas stand the newest values as text, and behind a button all of them as a table. */

import { html, useEffect, useRef, useSignal, useState } from "../ui.js";
import uPlot from "../vendor/uplot-1.6.32/uplot.mjs";
import { texts } from "../texts.js";
import { short, time } from "./format.js";
import { coloursCount } from "./theme.js";

const HEIGHT_PX = 168;
const TABLE_ROWS = 60;
/** Steps between the lines of a chart: numbers that `short` writes without rounding them. */
const STEPS = [0.1, 0.2, 0.5].concat(...Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)));

/**
 * @typedef {{label: string, values: (number | null)[]}} Series
 * @param {object} props
 * @param {string} props.title
 * @param {number[]} props.times_s
 * @param {Series[]} props.series at most six, which is how many colours there are
 * @param {(value: number | null | undefined) => string} [props.format]
 * @param {string} [props.note]
 * @param {any} [props.actions] beside the title
 */
export function Chart({ title, times_s, series, format = short, note, actions }) {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const [isTable, setTable] = useState(false);
  const colours = useSignal(coloursCount);
  const labels = series.map((each) => each.label).join("\n");

  useEffect(() => {
    const element = place.current;
    if (!element || isTable) return undefined;
    plot.current = new uPlot(options(element, series, format), data(times_s, series), element);
    const watched = new ResizeObserver(() => {
      if (element.clientWidth) plot.current?.setSize({ width: element.clientWidth, height: HEIGHT_PX });
    });
    watched.observe(element);
    return () => {
      watched.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
    // The data are set below, without making the chart anew.
  }, [labels, colours, isTable, format]);

  useEffect(() => {
    plot.current?.setData(data(times_s, series));
  }, [times_s, series]);

  const newest = series.map((each) => `${each.label} ${format(lastOf(each.values))}`).join(", ");
  return html`
    <section class="card chart" aria-label=${title}>
      <header class="card-head">
        <h2>${title}</h2>
        <div class="card-actions">
          ${actions}
          <button
            type="button"
            class="button is-small is-quiet"
            aria-pressed=${isTable}
            aria-label=${`${texts.chart.table}: ${title}`}
            onClick=${() => setTable(!isTable)}
          >
            ${texts.chart.table}
          </button>
        </div>
      </header>
      <ul class="legend">
        ${series.map(
          (each, index) => html`
            <li key=${each.label}>
              <span class=${`swatch is-${index + 1}`}></span>
              <span class="legend-label">${each.label}</span>
              <strong>${format(lastOf(each.values))}</strong>
            </li>
          `,
        )}
      </ul>
      ${isTable
        ? html`<${Values} title=${title} times_s=${times_s} series=${series} format=${format} />`
        : html`<div class="plot" ref=${place} role="img" aria-label=${texts.chart.alternative(title, newest)}></div>`}
      ${note && html`<p class="hint">${note}</p>`}
    </section>
  `;
}

/** @param {{title: string, times_s: number[], series: Series[], format: (value: any) => string}} props */
function Values({ title, times_s, series, format }) {
  const newest = times_s.map((_, index) => index).slice(-TABLE_ROWS).reverse();
  return html`
    <div class="plot-table" tabindex="0" role="region" aria-label=${title}>
      <table>
        <thead>
          <tr>
            <th scope="col">${texts.chart.time}</th>
            ${series.map((each) => html`<th scope="col" class="is-number">${each.label}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${newest.map(
            (index) => html`
              <tr key=${times_s[index]}>
                <th scope="row">${time(times_s[index] * 1000)}</th>
                ${series.map((each) => html`<td class="is-number">${format(each.values[index])}</td>`)}
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}

/** @param {(number | null)[]} values */
function lastOf(values) {
  for (let index = values.length - 1; index >= 0; index -= 1) {
    if (values[index] !== null && values[index] !== undefined) return values[index];
  }
  return null;
}

/** @param {number[]} times_s @param {Series[]} series @returns {any} */
function data(times_s, series) {
  return [times_s, ...series.map((each) => each.values)];
}

/** @param {HTMLElement} element @param {Series[]} series @param {(value: any) => string} format @returns {any} */
function options(element, series, format) {
  const style = getComputedStyle(element);
  const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  // Custom properties keep light-dark() as it was written: an element's colour is computed.
  const probe = document.createElement("span");
  element.append(probe);
  const computedColour = (/** @type {string} */ name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const text = computedColour("--text-quiet");
  const line = computedColour("--line");
  const strokes = series.map((_, index) => computedColour(`--series-${index + 1}`));
  probe.remove();
  const axis = {
    stroke: text,
    grid: { stroke: line, width: 1 },
    ticks: { show: false },
    font: `11px ${colour("--font") || "system-ui, sans-serif"}`,
  };
  return {
    width: element.clientWidth || 300,
    height: HEIGHT_PX,
    legend: { show: false },
    cursor: { sync: { key: "charts" }, points: { size: 6 }, drag: { x: false, y: false } },
    padding: [8, 8, 0, 0],
    scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [Math.min(0, low), high > 0 ? high * 1.15 : 1] } },
    axes: [
      { ...axis, space: 70, size: 26, gap: 5, values: (/** @type {any} */ _, /** @type {number[]} */ at) => at.map((each) => clock(each)) },
      { ...axis, space: 32, incrs: STEPS, size: axisWidth, gap: 4, values: (/** @type {any} */ _, /** @type {number[]} */ at) => at.map((each) => format(each)) },
    ],
    series: [
      {},
      ...series.map((each, index) => ({
        label: each.label,
        stroke: strokes[index],
        width: 1.75,
        points: { show: false },
        fill: series.length === 1 ? strokes[index].replace("rgb(", "rgba(").replace(")", ", 0.1)") : undefined,
      })),
    ],
  };
}

/** As wide as the longest of its numbers. @param {any} _ @param {string[] | null} values */
function axisWidth(_, values) {
  return Math.max(24, ...(values ?? []).map((each) => each.length * 6.4 + 10));
}

/** @param {number} at_s */
function clock(at_s) {
  return time(at_s * 1000).replace(/:\d\d$/, (seconds) => (seconds === ":00" ? "" : seconds));
}
