// Places the layers of a graph. Networks are long chains of blocks: they are cut where a single
// layer passes everything on, each block is laid out alone, and blocks are joined at those layers.
// So time grows with the length, not with its square. Runs off the page's own thread.

import { Graph, layout } from "./vendor/dagre/dagre.esm.js";

const [NODE_GAP, RANK_GAP] = [24, 36];
/** Blocks are joined up to this many nodes: few are faster than many small ones. */
const JOINED = 16;
/** A block with more nodes than this has no cut for long; dagre would take seconds for it. */
const MOST_DAGRE = 300;
/** In a graph with more nodes than this, rows do for all of it. */
const MOST_NODES = 3000;

/** Positions of nodes in an order where each input stands right before its first reader. */
function ordered(count, edges) {
  const first = new Array(count).fill(Infinity);
  const read = new Array(count).fill(false);
  for (const [from, to] of edges) {
    first[from] = Math.min(first[from], to);
    read[to] = true;
  }
  const key = (i) => (read[i] || first[i] === Infinity ? i : first[i] - 0.5);
  return Array.from({ length: count }, (_, i) => i).sort((a, b) => key(a) - key(b) || a - b);
}

/** The first and last position of each block. */
function blocksOf(count, spans) {
  const cover = new Array(count + 2).fill(0);
  for (const [from, to] of spans) {
    if (to - from < 2) continue;
    cover[from + 1] += 1;
    cover[to] -= 1;
  }
  const blocks = [];
  let start = 0;
  let over = 0;
  for (let i = 0; i < count; i += 1) {
    over += cover[i];
    if (over === 0 && i - start >= JOINED) {
      blocks.push([start, i]);
      start = i;
    }
  }
  if (blocks.length === 0 || start < count - 1) blocks.push([start, count - 1]);
  return blocks;
}

function byDagre(nodes, edges) {
  const graph = new Graph();
  graph.setGraph({ rankdir: "TB", nodesep: NODE_GAP, ranksep: RANK_GAP, edgesep: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  nodes.forEach(({ width, height }, i) => graph.setNode(String(i), { width, height }));
  for (const [from, to] of edges) graph.setEdge(String(from), String(to));
  layout(graph);
  return {
    places: nodes.map((_, i) => {
      const { x, y } = graph.node(String(i));
      return [x, y];
    }),
    lines: edges.map(([from, to]) => graph.edge(String(from), String(to)).points.map(({ x, y }) => [x, y])),
  };
}

/** Ranks by the longest path, each row ordered by the mean place of what it reads. */
export function byRows(nodes, edges) {
  const rank = new Array(nodes.length).fill(0);
  const reads = nodes.map(() => []);
  for (const [from, to] of edges) reads[to].push(from);
  // nodes come in execution order: what is read was placed before
  const rows = [];
  const x = new Array(nodes.length).fill(0);
  nodes.forEach((_, i) => {
    for (const from of reads[i]) rank[i] = Math.max(rank[i], rank[from] + 1);
    (rows[rank[i]] ??= []).push(i);
  });
  const ends = rows.map((row) => {
    const wanted = new Map(row.map((i) => [i, reads[i].length ? reads[i].reduce((sum, from) => sum + x[from], 0) / reads[i].length : 0]));
    row.sort((a, b) => wanted.get(a) - wanted.get(b));
    const width = row.reduce((sum, i) => sum + nodes[i].width, 0) + (row.length - 1) * NODE_GAP;
    let at = row.reduce((sum, i) => sum + wanted.get(i), 0) / row.length - width / 2;
    for (const i of row) {
      x[i] = at + nodes[i].width / 2;
      at += nodes[i].width + NODE_GAP;
    }
    return at;
  });
  const step = nodes[0].height + RANK_GAP;
  const places = nodes.map((node, i) => [x[i], rank[i] * step]);
  // an edge over several rows passes to the right of them
  const lines = edges.map(([from, to], k) => {
    const [a, b] = [places[from], places[to]];
    const [top, bottom] = [[a[0], a[1] + nodes[from].height / 2], [b[0], b[1] - nodes[to].height / 2]];
    if (rank[to] - rank[from] < 2) return [top, bottom];
    let side = -Infinity;
    for (let r = rank[from] + 1; r < rank[to]; r += 1) side = Math.max(side, ends[r]);
    side += 8 * (k % 8);
    return [top, [side, top[1] + RANK_GAP], [side, bottom[1] - RANK_GAP], bottom];
  });
  return { places, lines };
}

/** Places of nodes and points of edges; edges are pairs of node numbers, in execution order. */
export function placed(nodes, edges) {
  const order = ordered(nodes.length, edges);
  const position = new Array(nodes.length);
  order.forEach((node, i) => (position[node] = i));
  const spans = edges.map(([from, to]) => [position[from], position[to]]);
  const places = new Array(nodes.length);
  const lines = new Array(edges.length);
  const blocks = blocksOf(nodes.length, spans);
  const startOf = new Array(nodes.length);
  blocks.forEach(([first, last], b) => {
    for (let i = first; i < last; i += 1) startOf[i] = b;
  });
  const inBlock = blocks.map(() => []);
  spans.forEach(([from], k) => inBlock[startOf[from] ?? blocks.length - 1].push(k));
  blocks.forEach(([first, last], b) => {
    const members = order.slice(first, last + 1);
    const inner = inBlock[b].map((k) => [spans[k][0] - first, spans[k][1] - first]);
    const measured = members.map((i) => nodes[i]);
    const found = (members.length > MOST_DAGRE || nodes.length > MOST_NODES ? byRows : byDagre)(measured, inner);
    // the first layer of a block is the last of the one before
    const anchor = places[members[0]] ?? [0, 0];
    const shift = b ? [anchor[0] - found.places[0][0], anchor[1] - found.places[0][1]] : [0, 0];
    const moved = ([px, py]) => [px + shift[0], py + shift[1]];
    members.forEach((i, j) => (places[i] = moved(found.places[j])));
    inBlock[b].forEach((k, j) => (lines[k] = found.lines[j].map(moved)));
  });
  return { places, lines };
}

if (typeof window === "undefined") {
  globalThis.onmessage = ({ data: { nodes, edges } }) => {
    const started = performance.now();
    const { places, lines } = placed(nodes, edges);
    postMessage({ places, lines, ms: performance.now() - started });
  };
}
