"""The style sheet of the report."""

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b2330; --soft: #566274; --edge: #dde2e9; --grid: #e6eaf0;
  --good: #e3f4e8; --good-ink: #12683a; --c0: #2563eb; --c1: #c2410c; --c2: #0c7a53; --c3: #7c3aed; --c4: #a16207; --c5: #be185d; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --card: #1a202a; --ink: #e6eaf1; --soft: #a3aec0; --edge: #303948;
  --grid: #2a3240; --good: #15392a; --good-ink: #84e0ae; --c0: #7aa7ff; --c1: #ff9a62; --c2: #4fd3a0; --c3: #b79bff; --c4: #e8c25a;
  --c5: #ff8ac0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1220px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 36px 0 12px; }
p { margin: 6px 0; }
.soft, .none { color: var(--soft); }
.note { border-left: 3px solid var(--c4); padding: 2px 0 2px 12px; color: var(--soft); overflow-wrap: anywhere; }
code { font: 0.88em ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; margin: 18px 0 0; }
.tile, figure, .scroll, details { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; }
.tile { padding: 10px 14px; }
.tile dt { color: var(--soft); font-size: 0.82rem; }
.tile dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: 14px; align-items: start; }
.pair { grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%), 1fr)); }
figure .scroll { border: 0; border-radius: 0; margin-top: 6px; max-height: 260px; overflow: auto; }
.charts + .scroll, .scroll + .scroll { margin-top: 14px; }
figure { margin: 0; padding: 12px 14px 8px; min-width: 0; }
figcaption { font-weight: 600; font-size: 0.92rem; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; list-style: none; margin: 2px 0 4px; padding: 0; font-size: 0.8rem;
  color: var(--soft); }
.legend li { display: flex; align-items: center; gap: 6px; overflow-wrap: anywhere; }
.swatch { width: 22px; height: 10px; flex: none; }
.chart { display: block; width: 100%; height: auto; margin-top: 4px; }
.tick { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--grid); } .axis { stroke: var(--soft); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); stroke-dasharray: 7 3; } .l2 { stroke: var(--c2); stroke-dasharray: 2 3; }
.l3 { stroke: var(--c3); stroke-dasharray: 10 3 2 3; } .l4 { stroke: var(--c4); stroke-dasharray: 4 4; } .l5 { stroke: var(--c5); }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); } .f4 { fill: var(--c4); }
.f5 { fill: var(--c5); }
.dot { stroke: var(--card); stroke-width: 1; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: right; border-bottom: 1px solid var(--edge); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 600; }
td.best { font-weight: 700; color: var(--good-ink); }
.settings { columns: 340px; column-gap: 28px; padding: 4px 14px 12px; }
.settings section { break-inside: avoid; padding-top: 8px; }
.settings h3 { font-size: 0.85rem; color: var(--soft); margin: 0 0 2px; }
.settings dl { margin: 0; display: grid; grid-template-columns: minmax(0, 1.3fr) minmax(0, 1fr); gap: 1px 12px; font-size: 0.85rem; }
.settings dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.settings dt { color: var(--soft); overflow-wrap: anywhere; }
details { margin: 10px 0; overflow: hidden; }
summary { padding: 9px 14px; cursor: pointer; overflow-wrap: anywhere; }
summary:focus-visible { outline: 2px solid var(--c0); outline-offset: -2px; }
.ranks { display: flex; flex-wrap: wrap; gap: 4px 6px; margin-top: 3px; font-size: 0.8rem; }
.chip { border: 1px solid var(--edge); border-radius: 10px; padding: 0 8px; color: var(--soft); }
.chip.right { background: var(--good); color: var(--good-ink); border-color: transparent; }
.example { padding: 0 14px 10px; }
.example h3 { font-size: 0.85rem; color: var(--soft); margin: 12px 0 2px; }
.sides { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr)); gap: 0 20px; }
.sides section { min-width: 0; }
.example ol { margin: 0; padding: 0; list-style: none; }
.hit { border-left: 3px solid var(--edge); padding: 2px 0 2px 10px; margin: 6px 0; overflow-wrap: anywhere; unicode-bidi: isolate; }
.hit.right { border-color: var(--c2); background: var(--good); border-radius: 0 6px 6px 0; }
.hit p { margin: 0; font-size: 0.88rem; }
.hit .head span { margin-left: 10px; white-space: nowrap; }
mark { background: #ffe08a; color: #1b2330; border-radius: 2px; }
.badge { color: var(--good-ink); font-weight: 600; }
@media (max-width: 480px) { main { padding: 16px 10px 32px; } .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  figure { padding: 10px 8px 6px; } th, td { padding: 5px 9px; } }
@media (min-width: 1040px) { .pair .tick { font-size: 10px; } .pair .line { stroke-width: 1.6; } }
@media print { details { break-inside: avoid; } body { background: #fff; } }
"""
