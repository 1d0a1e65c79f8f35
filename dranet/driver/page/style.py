"""The style sheet of the page: for light and dark, for a desk and, as cards, for a phone."""

from __future__ import annotations

from dranet.pictures.svg import INLINE_STYLE

_PAGE = """
:root{--ground:#ffffff;--text:#1c232b;--muted:#515c67;--line:#d5dbe3;--card:#f5f7fa;--link:#0b57b0;
--good:#17663a;--bad:#b3261e;--good-ground:#dff3e6;--bad-ground:#fde4e1}
@media (prefers-color-scheme:dark){:root{--ground:#0f141a;--text:#e8edf2;--muted:#a7b2bd;--line:#2f3944;
--card:#171e26;--link:#86bbff;--good:#7ddca0;--bad:#ffa198;--good-ground:#12301f;--bad-ground:#431a17}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0 auto;padding:16px;max-width:1340px;background:var(--ground);color:var(--text);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",Arial,sans-serif;overflow-wrap:anywhere}
h1{margin:0;font-size:1.6rem;line-height:1.2}
h2{margin:2rem 0 .5rem;font-size:1.2rem;line-height:1.3}
p{margin:.5rem 0}
a{color:var(--link)}
.skip{position:absolute;left:16px;top:0;padding:4px 8px;background:var(--ground);transform:translateY(-150%)}
.skip:focus{transform:none}
.badge{display:inline-block;padding:2px 10px;border-radius:6px}
.badge.good{background:var(--good-ground)}
.badge.bad{background:var(--bad-ground)}
.good{color:var(--good)}
.bad{color:var(--bad)}
span.good,span.bad{font-weight:600}
span{overflow-wrap:break-word}
.empty,caption,figcaption,small{color:var(--muted)}
small{display:block;font-size:.85em;line-height:1.4}
.facts,nav ul{list-style:none;margin:.5rem 0;padding:0;display:flex;flex-wrap:wrap;gap:4px 16px}
nav a{display:inline-block;padding:4px 0}
.facts{color:var(--muted)}
footer{margin-top:2rem;border-top:1px solid var(--line);color:var(--muted)}
figure{margin:0}
figcaption,caption{font-size:.9rem;text-align:left;padding:4px 0}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
.scroll svg{display:block;margin:0 auto}
.scroll .desk{max-width:100%;height:auto}
.scroll .wide{min-width:1100px}
.scroll .phone{display:none}
table{border-collapse:collapse;width:100%}
th,td{min-width:6rem}
tbody th{min-width:9rem}
.devices{list-style:none;margin:0;padding:0}
.devices li+li{margin-top:6px}
th,td{text-align:left;vertical-align:top;padding:6px 12px 6px 0;font-weight:400}
thead th{font-size:.85rem;color:var(--muted);border-bottom:1px solid var(--line);overflow-wrap:normal}
tbody th{font-weight:600}
tbody th small{font-weight:400}
tbody tr+tr>*{border-top:1px solid var(--line)}
@media (max-width:920px){
table,caption,tbody,tr,tbody th,td{display:block}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
tbody tr{margin:8px 0;padding:8px 12px;background:var(--card);border:1px solid var(--line);border-radius:8px}
tbody tr+tr>*{border-top:0}
tbody th{padding:2px 0 6px;min-width:0}
td{display:grid;min-width:0;grid-template-columns:6.5rem minmax(0,1fr);column-gap:8px;padding:2px 0}
td.none{display:none}
td::before{content:attr(data-label);color:var(--muted);font-size:.85rem;line-height:1.75}
}
@media (max-width:640px){
.scroll .desk{display:none}
.scroll .phone{display:block;max-width:100%;height:auto}
.scroll{border:0}
}
@media print{.skip,nav{display:none}}
"""

STYLE = _PAGE + INLINE_STYLE
