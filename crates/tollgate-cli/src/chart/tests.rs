use super::*;

fn series(name: &str, tone: SeriesTone, data: SeriesData) -> ChartSeries {
    ChartSeries { name: name.into(), tone, data }
}

fn strip(lines: u16, series: Vec<ChartSeries>) -> ChartStrip {
    ChartStrip { label: String::new(), top: 0, unit: ChartUnit::Count, guide: None, lines, series }
}

fn chart(axis: ChartAxis, strips: Vec<ChartStrip>) -> Chart {
    let panel = ChartPanel { title: "token_bucket".into(), notes: vec!["4 of 6".into()], strips };
    Chart { title: "Burst".into(), description: "Six requests.".into(), axis, panels: vec![panel] }
}

fn bars() -> Vec<ChartSeries> {
    vec![
        series("admitted", SeriesTone::Admitted, SeriesData::Bars(vec![4, 2, 0, 1])),
        series("refused", SeriesTone::Refused, SeriesData::Bars(vec![0, 2, 3, 0])),
    ]
}

#[test]
fn bars_are_stacked_and_told_apart_without_colour() {
    let chart = chart(ChartAxis::time(4_000_000), vec![strip(2, bars())]);
    let expected = "\
Burst
Six requests.
█ admitted
░ refused

token_bucket
4 of 6
4┤█████░░░░░░░░░
0┤█████████░░░░░▄▄▄▄
 └┴───┴────┴───┴────
  0  1 s  2 s 3 s
";
    assert_eq!(TerminalChart::new(20, false).draw(&chart), expected);
}
