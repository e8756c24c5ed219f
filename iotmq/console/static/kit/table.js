/**
 * Tables of many rows. Only the rows that can be seen are in the page, so that ten thousand cost as much as forty;
 * `aria-rowcount` and `aria-rowindex` say what screen readers cannot see then.
 */

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../ui.js";
import { texts } from "../texts.js";
import { number } from "./format.js";
import { Icon } from "./icons.js";

const ROW_PX = 36;
const MARGIN_ROWS = 12;
/** Tables with fewer rows are in the page as a whole. */
const WHOLE_ROWS = 120;

/**
 * @typedef {object} Column
 * @property {string} key the field of the row, and the name it is sorted by
 * @property {any} title
 * @property {(row: any) => any} [show] what stands in the cell; else the field as it is
 * @property {(row: any) => string | number | null} [value] what it is sorted by; else the field
 * @property {boolean} [isNumber] stands at the right, and begins with the largest when it is sorted
 * @property {boolean} [isSorted] false: nobody wants it sorted
 * @property {"narrow" | "medium"} [hidden] left out on phones, or on tablets, too
 * @property {"wide" | "small"} [width]
 * @property {string} [hint] what the column means
 */

/**
 * @typedef {{key: string, isDescending: boolean}} Sort
 * @param {object} props
 * @param {string} props.caption what the table shows, for screen readers
 * @param {Column[]} props.columns
 * @param {any[] | null} props.rows null: not known yet
 * @param {(row: any) => string} props.rowKey
 * @param {Sort} [props.sort] the first one; without it rows stay as they come
 * @param {(sort: Sort) => void} [props.onSort] the server sorts: rows are taken as they come
 * @param {Set<string>} [props.chosen] the keys of the rows that are ticked
 * @param {(chosen: Set<string>) => void} [props.onChoose]
 * @param {(row: any) => string} [props.href] where a click on a row leads
 * @param {(row: any) => void} [props.onOpen] what a click on a row does; a button in it does the same
 * @param {() => void} [props.onMore] asks for more rows, where the server has some
 * @param {any} [props.empty] what is said instead of no rows
 * @param {boolean} [props.isComplete] false: the server has more rows than these
 * @param {boolean} [props.isTall] it may take as much of the page as there is
 */
export function Table(props) {
  const { caption, columns, rows, rowKey, onSort, chosen, onChoose, href, onOpen, empty } = props;
  const { isComplete = true, onMore, isTall = true } = props;
  const [sort, setSort] = useState(props.sort ?? null);
  const [seen, setSeen] = useState({ first: 0, count: 60 });
  const scroller = useRef(/** @type {HTMLDivElement | null} */ (null));

  const sorted = useMemo(() => (onSort ? rows : sortedRows(rows, columns, sort)), [rows, columns, sort, onSort]);
  const total = sorted?.length ?? 0;
  const isWhole = total <= WHOLE_ROWS;

  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element || isWhole) return undefined;
    function look() {
      if (!element) return;
      const first = Math.max(0, Math.floor(element.scrollTop / ROW_PX) - MARGIN_ROWS);
      const count = Math.ceil(element.clientHeight / ROW_PX) + 2 * MARGIN_ROWS;
      // In steps, so that not every pixel is a drawing.
      const step = first - (first % 6);
      setSeen((known) => (known.first === step && known.count === count ? known : { first: step, count }));
    }
    look();
    const watched = new ResizeObserver(look);
    watched.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      watched.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, [isWhole]);

  useEffect(() => {
    if (scroller.current) scroller.current.scrollTop = 0;
  }, [sort]);

  if (sorted !== null && total === 0) return html`<div class="empty">${empty ?? texts.table.empty}</div>`;

  const first = isWhole ? 0 : Math.min(seen.first, Math.max(0, total - seen.count));
  const last = isWhole ? total : Math.min(total, first + seen.count);
  const width = columns.length + (chosen ? 1 : 0);

  /** @param {Column} column */
  function sortBy(column) {
    const isSame = sort?.key === column.key;
    const next = { key: column.key, isDescending: isSame ? !sort.isDescending : Boolean(column.isNumber) };
    setSort(next);
    onSort?.(next);
  }

  /** @param {any} row @param {number} index */
  function drawn(row, index) {
    const key = rowKey(row);
    const isChosen = chosen?.has(key);
    const target = href?.(row);
    return html`
      <tr
        key=${key}
        aria-rowindex=${index + 2}
        class=${`${isChosen ? "is-chosen" : ""} ${target || onOpen ? "is-link" : ""}`}
        onClick=${(target || onOpen) &&
        ((/** @type {MouseEvent} */ event) => {
          const hit = /** @type {Element} */ (event.target);
          if (hit.closest("a, button, input, label") || String(getSelection())) return;
          if (target) location.hash = target;
          else onOpen?.(row);
        })}
      >
        ${chosen &&
        html`
          <td class="is-choice">
            <input
              type="checkbox"
              aria-label=${texts.table.choose(key)}
              checked=${isChosen}
              onChange=${() => onChoose?.(toggled(chosen, key))}
            />
          </td>
        `}
        ${columns.map(
          (column) => html`
            <td key=${column.key} class=${cellClass(column)}>${column.show ? column.show(row) : row[column.key]}</td>
          `,
        )}
      </tr>
    `;
  }

  const isAllChosen = chosen && total > 0 && sorted?.every((row) => chosen.has(rowKey(row)));
  return html`
    <div class=${`table ${isTall ? "is-tall" : ""}`}>
      <div class="table-scroll" ref=${scroller} role="region" aria-label=${caption} tabindex="0" aria-busy=${sorted === null}>
        <table aria-rowcount=${total + 1}>
          <caption class="unseen">${caption}</caption>
          <thead>
            <tr aria-rowindex="1">
              ${chosen &&
              html`
                <th scope="col" class="is-choice">
                  <input
                    type="checkbox"
                    aria-label=${texts.table.chooseAll}
                    checked=${isAllChosen}
                    onChange=${() => onChoose?.(new Set(isAllChosen ? [] : sorted?.map(rowKey)))}
                  />
                </th>
              `}
              ${columns.map((column) => {
                const isSorted = sort?.key === column.key;
                const order = sort?.isDescending ? "descending" : "ascending";
                return html`
                  <th
                    key=${column.key}
                    scope="col"
                    class=${cellClass(column)}
                    title=${column.hint}
                    aria-sort=${isSorted ? order : undefined}
                  >
                    ${column.isSorted === false
                      ? column.title
                      : html`
                          <button type="button" class="sort" onClick=${() => sortBy(column)}>
                            ${column.title}
                            <span class=${`sort-mark ${isSorted ? "is-on" : ""}`}>
                              <${Icon} name=${isSorted && !sort?.isDescending ? "up" : "down"} />
                            </span>
                          </button>
                        `}
                  </th>
                `;
              })}
            </tr>
          </thead>
          <tbody>
            ${sorted === null &&
            [0, 1, 2, 3, 4].map(
              (each) => html`<tr key=${each} class="is-waiting" aria-hidden="true"><td colspan=${width}><span class="bone"></span></td></tr>`,
            )}
            ${first > 0 && html`<tr class="gap" aria-hidden="true" key="before"><td colspan=${width} style=${{ height: `${first * ROW_PX}px` }}></td></tr>`}
            ${sorted?.slice(first, last).map((row, index) => drawn(row, first + index))}
            ${last < total && html`<tr class="gap" aria-hidden="true" key="after"><td colspan=${width} style=${{ height: `${(total - last) * ROW_PX}px` }}></td></tr>`}
          </tbody>
        </table>
      </div>
      <p class="table-foot">
        ${sorted === null ? texts.table.loading : isComplete ? texts.table.rows(number(total), total) : texts.table.firstRows(number(total))}
        ${!isComplete && onMore && html`<button type="button" class="button is-small" onClick=${onMore}>${texts.table.more}</button>`}
        ${chosen && chosen.size > 0 && html`<strong>${texts.table.chosen(number(chosen.size))}</strong>`}
      </p>
    </div>
  `;
}

/** @param {Column} column */
function cellClass(column) {
  return [
    column.isNumber && "is-number",
    column.hidden && `not-${column.hidden}`,
    column.width && `is-${column.width}`,
  ]
    .filter(Boolean)
    .join(" ");
}

/** @param {Set<string>} chosen @param {string} key */
function toggled(chosen, key) {
  const next = new Set(chosen);
  if (!next.delete(key)) next.add(key);
  return next;
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

/** @param {any[] | null} rows @param {Column[]} columns @param {Sort | null} sort */
function sortedRows(rows, columns, sort) {
  const column = sort && columns.find((each) => each.key === sort.key);
  if (!rows || !column) return rows;
  const valueOf = column.value ?? ((/** @type {any} */ row) => row[column.key]);
  const turn = sort.isDescending ? -1 : 1;
  const keyed = rows.map((row) => ({ row, value: valueOf(row) }));
  keyed.sort((a, b) => {
    // What is not known stands behind all that is, whichever way it is sorted.
    if (a.value === null || a.value === undefined) return b.value === null || b.value === undefined ? 0 : 1;
    if (b.value === null || b.value === undefined) return -1;
    if (typeof a.value === "number" && typeof b.value === "number") return turn * (a.value - b.value);
    return turn * COLLATOR.compare(String(a.value), String(b.value));
  });
  return keyed.map((each) => each.row);
}

/**
 * A column with a button in each row.
 * @param {string} word what it says, and what the column is called to who cannot see that
 * @param {(row: any) => void} act
 * @param {{wordOf?: (row: any) => string, isIn?: (row: any) => boolean}} [more] another word in some rows; which rows have one
 * @returns {Column}
 */
export function buttonColumn(word, act, { wordOf = () => word, isIn = () => true } = {}) {
  return {
    key: "button",
    title: html`<span class="unseen">${word}</span>`,
    isSorted: false,
    width: "small",
    show: (row) => isIn(row) && html`<button type="button" class="button" onClick=${() => act(row)}>${wordOf(row)}</button>`,
  };
}
