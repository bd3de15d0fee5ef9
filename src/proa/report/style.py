"""How the page looks: light and dark, on a desk, on a phone and on paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #59636e; --line: #d5dbe1; --box: #f5f7f9;
  --link: #0b5cad; --bad: #b3261e; --warn: #fff3d6; --warn-line: #b27b00;
  --s0: #0067a5; --s1: #c94f00; --s2: #00805c; --s3: #b03a86;
  --s4: #8a6d00; --s5: #3f8fd6; --s6: #5f6670; --s7: #6d3fb0;
  --n3: #f0913a; --n2: #f8bd82; --n1: #fce3c8; --p1: #d6e7f6; --p2: #a3cbec; --p3: #62a8de;
  --compute: #0067a5; --generate: #00946b; --score: #e69f00; --publish: #a24fb5; --load: #56b4e9; --send: #9a8300;
  --eval: #d1478c; --save: #c94f00; --meet: #7c6a5a; --wait: #dfe3e8; --other: #8a929b; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e8ebee; --soft: #a3adb8; --line: #353c45;
  --box: #1d2228; --link: #78b7ff; --bad: #ff8a80; --warn: #3a2f12; --warn-line: #d6a12a;
  --s0: #5db0f5; --s1: #ff9a52; --s2: #3fcb9d; --s3: #f08fd0;
  --s4: #e0bf2f; --s5: #a9d3ff; --s6: #b4bcc5; --s7: #c3a0f5;
  --n3: #a65200; --n2: #74400f; --n1: #47321f; --p1: #1f3850; --p2: #1d557f; --p3: #1a76b8;
  --compute: #4b9fe0; --generate: #2fb98b; --score: #e6a92a; --publish: #bf7fd0; --load: #8fd0f5; --send: #b3a13a;
  --eval: #e678ae; --save: #ff9a52; --meet: #a08c7a; --wait: #39414a; --other: #78828c; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 3.2rem; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
header, main, footer { max-width: 1320px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 22px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 10px; }
h3 { font-size: .95rem; margin: 0; overflow-wrap: anywhere; }
.kind, .note, .what, footer { color: var(--soft); font-size: .85rem; }
.note { margin: 2px 0 6px; overflow-wrap: anywhere; }
p { margin: 6px 0; overflow-wrap: anywhere; }
nav { position: sticky; top: 0; z-index: 2; background: var(--paper); border-bottom: 1px solid var(--line);
  margin-top: 12px; overflow-x: auto; white-space: nowrap; }
nav div { max-width: 1320px; margin: 0 auto; padding: 0 20px; }
nav a { display: inline-block; padding: 10px 14px 10px 0; font-size: .88rem; }
a { color: var(--link); text-decoration: none; }
a:hover, a:focus-visible { text-decoration: underline; }
section { padding: 24px 0 12px; border-bottom: 1px solid var(--line); }
section > h3 { margin: 16px 0 4px; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.badge { display: inline-block; padding: 1px 9px; border-radius: 10px; border: 1px solid var(--soft); font-size: .82rem;
  font-weight: 600; white-space: nowrap; }
.badge.completed { border-color: var(--s2); color: var(--s2); }
.badge.running { border-color: var(--s0); color: var(--s0); }
.badge.failed, .badge.cut-off, .badge.cannot-be-read { border-color: var(--bad); color: var(--bad); }
.badge.cancelled { border-color: var(--warn-line); color: var(--warn-line); }
.warning { background: var(--warn); border-left: 4px solid var(--warn-line); padding: 6px 12px; }
.conclusion { background: var(--box); border-left: 4px solid var(--s0); padding: 8px 12px; max-width: 80ch; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 12px 0; }
.tile { background: var(--box); border-radius: 6px; padding: 8px 14px; min-width: 120px; max-width: 100%; }
.tile span { display: block; margin: 0; overflow-wrap: anywhere; }
.tile strong { font-size: 1.35rem; line-height: 1.25; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 10px 0; font-size: .88rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr)); gap: 18px 24px; }
figure { margin: 0; min-width: 0; break-inside: avoid; }
figure.chart { display: flex; flex-direction: column; }
figure.chart figcaption { flex: 1; }
figure.wide { margin: 14px 0; }
.wide svg { min-width: 760px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
svg .name { fill: var(--ink); font-weight: 600; }
.grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; }
.cursor { stroke: var(--soft); stroke-dasharray: 3 3; }
.line { fill: none; stroke: var(--c); stroke-width: 1.6; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
circle { fill: var(--c); }
.band { fill: var(--c); opacity: .17; stroke: none; }
svg .gap { fill: var(--bad); text-anchor: middle; }
.interval { stroke: var(--c); stroke-width: 2; }
.mean { fill: var(--c); }
.repeat { fill: none; stroke: var(--c); stroke-width: 1.3; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); }
.d1 .line { stroke-dasharray: 7 3; } .d2 .line { stroke-dasharray: 2 3; } .d3 .line { stroke-dasharray: 9 3 2 3; }
.readout { display: block; min-height: 1.5em; font-size: .82rem; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: .85rem; margin: 4px 0 10px; align-items: center; }
.key { display: inline-flex; align-items: center; gap: 6px; overflow-wrap: anywhere; }
.stroke { display: inline-block; width: 28px; flex: none; vertical-align: middle; margin-right: 4px; }
button, select, input[type=search] { font: inherit; font-size: .85rem; color: inherit; background: var(--box);
  border: 1px solid var(--line); border-radius: 5px; padding: 4px 10px; max-width: 100%; }
button[aria-pressed=false] { opacity: .45; text-decoration: line-through; }
button:disabled { opacity: .4; }
.controls { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin: 6px 0; }
.swatch { display: inline-block; width: 14px; height: 14px; border-radius: 2px; background: var(--c); fill: var(--c); }
rect { fill: var(--c); }
.k-compute { --c: var(--compute); } .k-generate { --c: var(--generate); } .k-score { --c: var(--score); }
.k-publish { --c: var(--publish); } .k-load { --c: var(--load); } .k-send { --c: var(--send); }
.k-eval { --c: var(--eval); } .k-save { --c: var(--save); } .k-meet { --c: var(--meet); } .k-wait { --c: var(--wait); }
.k-other { --c: var(--other); }
.scroll { overflow-x: auto; max-width: 100%; margin: 6px 0; }
table { border-collapse: collapse; font-size: .86rem; width: max-content; }
th, td { text-align: left; vertical-align: top; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line);
  max-width: 60ch; overflow-wrap: anywhere; white-space: pre-wrap; min-width: 3.5em; }
th { color: var(--soft); font-weight: 600; white-space: normal; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
details { margin: 8px 0; }
summary { cursor: pointer; color: var(--link); padding: 4px 0; font-size: .9rem; overflow-wrap: anywhere; }
.predictions td { contain: paint; min-width: 5em; }
.predictions td.long { min-width: 22ch; }
.predictions td div { max-height: 14em; overflow: auto; }
.sample { border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; margin: 8px 0; break-inside: avoid; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font: .86rem/1.55 ui-monospace, monospace; contain: paint;
  unicode-bidi: isolate; max-height: 24em; overflow: auto; }
.prompt { color: var(--soft); border-left: 3px solid var(--line); padding-left: 8px; margin-bottom: 4px; }
.t { border-radius: 2px; }
.t.at { outline: 2px solid var(--ink); }
.ax, .mx { outline: 1px solid var(--bad); }
.colouring label { margin: 0 12px 0 2px; font-size: .88rem; }
.for-advantage, .for-mismatch { display: none; }
#by-advantage:checked ~ .samples .for-advantage, #by-mismatch:checked ~ .samples .for-mismatch { display: inline; }
#by-advantage:checked ~ .samples .a0, #by-mismatch:checked ~ .samples .m0 { background: var(--n3); }
#by-advantage:checked ~ .samples .a1, #by-mismatch:checked ~ .samples .m1 { background: var(--n2); }
#by-advantage:checked ~ .samples .a2, #by-mismatch:checked ~ .samples .m2 { background: var(--n1); }
#by-advantage:checked ~ .samples .a4, #by-mismatch:checked ~ .samples .m4 { background: var(--p1); }
#by-advantage:checked ~ .samples .a5, #by-mismatch:checked ~ .samples .m5 { background: var(--p2); }
#by-advantage:checked ~ .samples .a6, #by-mismatch:checked ~ .samples .m6 { background: var(--p3); }
.samples .swatch.t { border: 1px solid var(--line); }
footer { padding: 18px 20px 40px; }
@media (max-width: 600px) {
  header, main, nav div, footer { padding-left: 14px; padding-right: 14px; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 6px; }
  th, td { max-width: 42ch; } h1 { font-size: 1.4rem; } .tile { flex: 1 1 140px; } }
@media print { nav, .controls, .colouring > input, .colouring > label { display: none; }
  :root { color-scheme: light; } section { break-inside: auto; } .scroll, .text { overflow: visible; max-height: none; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
