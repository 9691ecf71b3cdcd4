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

#[test]
fn a_line_of_many_points_is_a_small_picture() {
    let point = |x: u64| ChartPoint { x, y: x % 7 };
    let points = SeriesData::Line((0..200_000).map(point).collect());
    let series = vec![series("level", SeriesTone::Level, points)];
    let picture = SvgChart.draw(&chart(ChartAxis::time(200_000), vec![strip(3, series)]));
    // Drawn twice, as a line and as the area below it, four points for each tenth of a unit.
    assert!(picture.len() < 700_000, "{}", picture.len());
}

#[test]
fn hostile_and_long_names_stay_text_beside_the_drawing() {
    let mut chart = chart(ChartAxis::count(1), vec![strip(1, bars())]);
    chart.title = "<script>&\"\0\u{202e}".repeat(20);
    chart.panels[0].title = "n".repeat(70);
    let picture = SvgChart.draw(&chart);
    assert!(!picture.contains("<script>") && !picture.contains(['\0', '\u{202e}']), "{picture}");
    assert!(picture.contains(&format!(">{}</text>", "n".repeat(30))), "{picture}");
}
