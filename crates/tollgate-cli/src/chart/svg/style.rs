//! The style sheet of a picture: system fonts, and colours for light and dark themes.

use std::fmt::Write as _;

use super::SeriesTone;

/// The fill of what is refused: stripes, so that it differs from other bars without its colour.
pub(super) const PATTERNS: &str = "<defs><pattern id=\"stripes\" width=\"5\" height=\"5\" \
     patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
     <rect class=\"refused thin\" width=\"5\" height=\"5\"/><rect class=\"refused\" width=\"2.6\" height=\"5\"/>\
     </pattern></defs>\n";

/// The shapes, which do not depend on the theme.
const SHAPES: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}\
.h{font-size:19px;font-weight:650}.p{font-size:14px;font-weight:650}.d{font-size:13px}\
.a,.e,.t,.y{font-size:11px}.y,.e{text-anchor:end}.t{text-anchor:middle}\
.n,.a,.t,.y{font-variant-numeric:tabular-nums}\
.e{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}\
.l{fill:none!important;stroke-width:1.6px;stroke-linejoin:round}.u{fill-opacity:.16}\
.s{fill:none!important;stroke-width:1.6px;stroke-opacity:.55}\
.x,.o{fill:none!important;stroke-width:2px;stroke-linecap:round}\
.b.refused{fill:url(#stripes)}.thin{fill-opacity:.28}\
.g,.r{fill:none;stroke-width:1px}.k{fill:none;stroke-width:1.2px;stroke-dasharray:5 4}";

/// Background, drawing area, rules, text and quiet text on a light and on a dark background.
const SURFACES: [[&str; 5]; 2] = [
    ["#ffffff", "#f6f8fa", "#dfe4ea", "#1f2328", "#59636e"],
    ["#0d1117", "#151b23", "#2c343e", "#f0f6fc", "#9aa4af"],
];

/// The style sheet.
pub(super) fn sheet() -> String {
    let [light, dark] = [0, 1].map(theme);
    format!("{SHAPES}{light}@media (prefers-color-scheme:dark){{{dark}}}")
}

fn theme(index: usize) -> String {
    let [background, area, rule, text, quiet] = SURFACES[index];
    let mut sheet = format!(
        ".bg{{fill:{background}}}.f{{fill:{area}}}.g,.r{{stroke:{rule}}}.h,.p{{fill:{text}}}\
         .d,.n,.a,.t,.y,.e{{fill:{quiet}}}.e{{stroke:{area}}}.k{{stroke:{quiet}}}"
    );
    for tone in SeriesTone::ALL {
        let (class, colour) = (tone.class(), tone.colours()[index]);
        let _ = write!(
            sheet,
            ".{class}{{fill:{colour}}}.l.{class},.s.{class},.x.{class},.o.{class}{{stroke:{colour}}}"
        );
    }
    sheet
}
