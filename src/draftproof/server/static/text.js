// Numbers as people read them. What is not defined is "n/a", never 0.

export const NONE = "n/a";

/** A probability or a coin. */
export function probability(value) {
  if (value === null || value === undefined) return NONE;
  if (value !== 0 && value < 0.001) return value.toExponential(1);
  return value.toFixed(3);
}

/** A share in percent; `of` is the denominator. */
export function percent(count, of) {
  return of > 0 ? `${((100 * count) / of).toFixed(0)} %` : NONE;
}

/** Seconds with a unit that fits. */
export function seconds(value) {
  if (value >= 1) return `${value.toFixed(2)} s`;
  return value >= 0.001 ? `${(1000 * value).toFixed(0)} ms` : `${(1e6 * value).toFixed(0)} µs`;
}

/** A pace. */
export function pace(value) {
  if (value === null) return "–";
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

/** Bytes in decimal units. */
export function bytes(value) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${value} B`;
}

/** A count with its thousands apart. */
export function count(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** A word in its number. */
export function several(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

/** A token as one visible word. */
export function visible(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "·";
}
