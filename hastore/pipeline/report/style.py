"""The style sheet of a report: one column of cards, light or dark as the reader's machine is."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --font: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
  --page: #f4f5f7; --paper: #ffffff; --ink: #1b2330; --muted: #566173; --grid: #d9dee5;
  --accent: #1f5fbf; --warn: #9a5b00; --warn-paper: #fff4de; --other: #a3acb9;
  --s0: #2f6fd0; --s1: #e08a1e; --s2: #1f9e89; --s3: #c2487f; --s4: #7a5fd3; --s5: #8a9a2b;
  --s6: #3aa5d1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11151b; --paper: #1a2029; --ink: #e6eaf0; --muted: #a0abba; --grid: #333d4a;
    --accent: #7fb0ff; --warn: #f2c063; --warn-paper: #35290f; --other: #6a7584;
    --s0: #6ea4f5; --s1: #f0a94e; --s2: #45c4ae; --s3: #e57cab; --s4: #a792f0; --s5: #b6c654;
    --s6: #6cc6ea;
  }
}
@media print { :root { --page: #ffffff; } .card { break-inside: avoid; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 var(--font); }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 19px; margin: 0 0 2px; }
p { margin: 4px 0 12px; }
.lead, .note, figcaption { color: var(--muted); }
.note { font-size: 13.5px; }
.tiles { display: grid; gap: 12px; margin: 20px 0; padding: 0; list-style: none;
  grid-template-columns: repeat(auto-fit, minmax(min(225px, 42%), 1fr)); }
.tiles li, .card { background: var(--paper); border: 1px solid var(--grid); border-radius: 10px; }
.tiles li { padding: 14px 16px; }
.tiles .value { display: block; font-size: 26px; font-weight: 650; line-height: 1.25;
  letter-spacing: -0.01em; white-space: nowrap; }
.tiles .name { display: block; color: var(--muted); font-size: 13px; }
.tiles .more { display: block; color: var(--muted); font-size: 12.5px; }
.tiles .wrong .value { color: var(--warn); }
.card { padding: 20px 22px; margin: 0 0 16px; }
.warning { background: var(--warn-paper); border-color: var(--warn); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(400px, 1fr)); gap: 8px 24px; }
@media (max-width: 480px) { .pair { grid-template-columns: 1fr; } .card { padding: 16px 14px; } }
figure { margin: 8px 0 4px; }
@media (max-width: 700px) { figure.wide { overflow-x: auto; } .wide svg { min-width: 720px; } }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.scroll { overflow-x: auto; margin-top: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--muted); padding: 4px 0; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--grid);
  vertical-align: top; }
th { color: var(--muted); font-weight: 550; white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.name { overflow-wrap: anywhere; min-width: 9em; }
tr.others td { color: var(--muted); }
tbody tr:last-child td { border-bottom: 0; }
.bar { display: inline-block; height: 0.7em; border-radius: 2px; background: var(--s0);
  min-width: 1px; }
details { margin-top: 8px; }
summary { cursor: pointer; color: var(--accent); font-size: 13.5px; }
footer { color: var(--muted); font-size: 13px; margin-top: 24px; }
nav { font-size: 13.5px; }
nav a { color: var(--accent); text-decoration: none; margin-right: 14px; }
nav a:hover, nav a:focus { text-decoration: underline; }
"""
