"""How a report looks: its style sheet, for a light screen, a dark screen and paper."""

from server_app.report.markup import Html

# A page with this policy runs no script and fetches nothing, whatever it holds.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

# The lines' colours are those of Okabe and Ito (2008), which people with any colour vision can tell
# apart; on white, the light ones are darker here, so that all have a contrast of at least 3 to 1.
STYLE = Html("""
:root {
  color-scheme: light dark;
  --page: #ffffff; --card: #f5f7f9; --text: #1a2027; --muted: #56616c; --rule: #d9dfe5; --grid: #e6eaee;
  --accent: #0072b2; --good: #0b6b4a; --warn: #8a5a00; --bad: #b3261e; --calm: #4a5560;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #c66a9f; --s4: #c58600; --s5: #3a9bd6;
  --s6: #1a2027; --s7: #a19400;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #12161b; --card: #1a2027; --text: #e7ebef; --muted: #9da8b3; --rule: #333d47; --grid: #262e36;
    --accent: #56b4e9; --good: #4fd1a5; --warn: #f0b849; --bad: #ff8a80; --calm: #b4bec8;
    --s0: #2f8fd0; --s1: #e8722a; --s2: #17b58a; --s3: #d78bb6; --s4: #e69f00; --s5: #7cc8f2;
    --s6: #e7ebef; --s7: #f0e442;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
main { max-width: 1080px; margin: 0 auto; padding: 36px 28px 64px; }
h1 { margin: 0; font-size: 28px; line-height: 1.25; letter-spacing: -0.01em; }
h2 { margin: 0 0 14px; font-size: 19px; line-height: 1.3; }
section, details { margin-top: 44px; }
p { margin: 0 0 10px; max-width: 78ch; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.muted { color: var(--muted); }
.note { max-width: 110ch; margin: 12px 0 0; font-size: 13px; }
.kicker { margin: 0 0 6px; color: var(--muted); font-size: 13px; }
.title { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 16px; margin-bottom: 6px; }
.badge {
  padding: 3px 12px; border: 1.5px solid currentColor; border-radius: 999px; font-size: 14px;
  font-weight: 600; white-space: nowrap;
}
.completed { color: var(--good); }
.completed-degraded, .did-not-end { color: var(--warn); }
.failed { color: var(--bad); }
.stopped { color: var(--calm); }
.reason { max-width: none; margin: 14px 0 0; padding: 10px 16px; }
.reason { border-left: 4px solid var(--rule); background: var(--card); }
dl { margin: 0; }
dd { margin: 0; }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 26px;
}
.tiles div {
  display: flex; flex-direction: column-reverse; padding: 14px 18px; border-radius: 10px;
  background: var(--card);
}
.tiles dt { color: var(--muted); font-size: 13px; }
.tiles dd { font-size: 24px; font-weight: 600; line-height: 1.3; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 0 40px; }
.facts div {
  display: grid; grid-template-columns: 140px 1fr; gap: 12px; padding: 8px 0;
  border-top: 1px solid var(--rule);
}
.facts dt { color: var(--muted); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 28px; }
.small { max-width: 600px; }
.drift > * + * { margin-top: 28px; }
.drift > p + p, .drift > .scroll + p { margin-top: 8px; }
figure { margin: 0; min-width: 0; }
section > figure + figure, section > p + figure, section > figure + p { margin-top: 30px; }
figcaption { margin-bottom: 6px; font-size: 14px; }
figcaption span { display: block; color: var(--muted); font-size: 13px; }
.scroll { overflow-x: auto; }
svg { display: block; width: 100%; min-width: 320px; height: auto; }
.wide svg { min-width: 800px; }
svg text { fill: var(--muted); font-size: 12px; }
svg .label { fill: var(--text); }
svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; }
.grid { stroke: var(--grid); }
.axis, .tick { stroke: var(--muted); }
.line polyline { fill: none; stroke: var(--line); stroke-width: 2; stroke-linejoin: round; }
.line circle { fill: var(--line); }
.band polygon { fill: var(--line); opacity: 0.13; }
.lead polyline { fill: none; stroke: var(--line); stroke-width: 1.2; }
.lead .tail { opacity: 0.55; stroke-dasharray: 1 4; stroke-linecap: round; }
.faint { opacity: 0.32; }
.faint polyline { stroke-width: 1.1; }
.faint circle { r: 1.6px; }
.s0 { --line: var(--s0); } .s1 { --line: var(--s1); } .s2 { --line: var(--s2); } .s3 { --line: var(--s3); }
.s4 { --line: var(--s4); } .s5 { --line: var(--s5); } .s6 { --line: var(--s6); } .s7 { --line: var(--s7); }
.d1 polyline { stroke-dasharray: 7 3; }
.d2 polyline { stroke-dasharray: 2 3; }
.d3 polyline { stroke-dasharray: 9 3 2 3; }
.reference { --line: var(--muted); }
.reference polyline { stroke-width: 1.2; stroke-dasharray: 1 4; stroke-linecap: round; }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
th, td { padding: 7px 10px; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }
th, td { overflow-wrap: normal; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--muted); font-size: 13px; font-weight: 500; vertical-align: bottom; }
thead th { border-bottom-color: var(--muted); line-height: 1.3; }
tbody th { min-width: 90px; font-weight: 600; }
tbody .whole { white-space: nowrap; }
.words { min-width: 150px; overflow-wrap: anywhere; }
.number { text-align: right; }
td.number { white-space: nowrap; }
.rounds { min-width: 110px; }
.bad { color: var(--bad); font-weight: 600; }
.weight { display: flex; align-items: center; justify-content: flex-end; gap: 8px; }
.bar { flex: none; width: 84px; height: 9px; border-radius: 2px; background: var(--grid); }
.bar span { display: block; height: 100%; border-radius: 2px; background: var(--accent); }
.hints { margin: 0 0 14px; padding: 0; list-style: none; }
.hints li {
  display: grid; grid-template-columns: 76px minmax(80px, 180px) 1fr; gap: 2px 12px; align-items: baseline;
  padding: 10px 0; border-top: 1px solid var(--rule);
}
.hints .muted { display: block; font-size: 13px; }
@media screen and (max-width: 600px) {
  .hints li { grid-template-columns: 76px 1fr; }
  .hints li div { grid-column: 1 / -1; }
}
.tag {
  padding: 0 8px; border: 1px solid var(--warn); border-radius: 4px; color: var(--warn); font-size: 12px;
  text-align: center;
}
.caveat { max-width: none; padding: 10px 16px; border-left: 4px solid var(--warn); background: var(--card); }
summary { cursor: pointer; font-size: 19px; font-weight: 700; }
.listings { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
.listings { gap: 24px 40px; margin-top: 16px; align-items: start; }
.listing caption { padding: 0 0 6px; font-weight: 600; text-align: left; }
.listing th { font-weight: 400; color: var(--muted); }
.listing th, .listing td { padding-top: 3px; padding-bottom: 3px; }
@media print {
  @page { margin: 14mm; }
  body { font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  figure, tr, .hints li, .tiles div { break-inside: avoid; }
  h2, figcaption { break-after: avoid; }
  .scroll { overflow: visible; }
  section, details { margin-top: 26px; }
  table, .note { font-size: 8pt; }
  thead th, code { font-size: 7.5pt; }
  th, td { padding: 4px 5px; }
  .bar { width: 44px; }
  .tiles { grid-template-columns: repeat(5, 1fr); gap: 8px; margin-top: 16px; }
  .tiles div { padding: 8px 12px; }
  .tiles dd { font-size: 15pt; }
  .pair { grid-template-columns: 1fr 1fr; gap: 16px; }
  svg, .wide svg { min-width: 0; }
  .wide text { font-size: 15px; }
  .words, tbody th, .rounds { min-width: 60px; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
""")
