//! The comparison of all algorithms on the same traffic: as a chart, as JSON lines, or as a table of what was
//! measured.
//!
//! Data flows one way: [`traffic`] says when requests arrive, [`course`] decides them by every algorithm,
//! and [`picture`] or this file shows the outcome.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use super::one_limit::LimitAnswerLine;
use super::{Args, CommandFailure, OUTPUT_BYTES, OutputForm, Report};
use crate::chart::{Chart, SvgChart, TerminalChart};
use course::AlgorithmCourse;
use scenario::TrafficScenario;

mod course;
mod picture;
pub(super) mod scenario;
#[cfg(test)]
mod tests;
mod traffic;

/// Columns of a chart, unless the terminal says otherwise.
const CHART_COLUMNS: usize = 80;

/// Compares the algorithms on a scenario.
pub(super) fn run_scenario(scenario: &TrafficScenario, args: &Args) -> Result<(), CommandFailure> {
    let output = args.output.unwrap_or(OutputForm::Chart);
    if output == OutputForm::Table {
        let problem = "--output table summarizes rules, and no rules are given";
        return Err(CommandFailure::Usage(
            Report::new(problem).hint("write --output chart or jsonl, or leave out --output"),
        ));
    }
    let (traffic, limit) = (scenario.traffic(), scenario.limit());
    let courses = AlgorithmCourse::of_all(&limit, &traffic)
        .map_err(|error| CommandFailure::Input(Report::new(error.to_string())))?;
    if output == OutputForm::Jsonl {
        print_answers(&courses).map_err(CommandFailure::from_output)?;
    }
    let chart = picture::comparison(&scenario.heading(), &traffic, &courses);
    show(&chart, output, args.svg.as_deref())
}

/// Prints a chart if the output is one, and writes it to a file if there is one.
pub(super) fn show(
    chart: &Chart,
    output: OutputForm,
    svg: Option<&Path>,
) -> Result<(), CommandFailure> {
    if output == OutputForm::Chart {
        let text = TerminalChart::for_stdout(CHART_COLUMNS).draw(chart);
        io::stdout().write_all(text.as_bytes()).map_err(CommandFailure::from_output)?;
    }
    let Some(path) = svg else { return Ok(()) };
    std::fs::write(path, SvgChart.draw(chart)).map_err(|error| {
        CommandFailure::Input(Report::new(format!("cannot write {}: {error}", path.display())))
    })
}

/// The output of an answer of one algorithm.
#[derive(Serialize)]
struct CourseAnswerLine<'a> {
    algorithm: &'a str,
    queue: bool,
    #[serde(flatten)]
    answer: LimitAnswerLine<'a>,
}

fn print_answers(courses: &[AlgorithmCourse]) -> io::Result<()> {
    let mut output = BufWriter::with_capacity(OUTPUT_BYTES, io::stdout().lock());
    for course in courses {
        for answer in &course.answers {
            let line = CourseAnswerLine {
                algorithm: course.limit.algorithm().name(),
                queue: course.limit.is_queue(),
                answer: LimitAnswerLine::new(answer.at, &answer.key, answer.cost, &answer.decision),
            };
            serde_json::to_writer(&mut output, &line)?;
            output.write_all(b"\n")?;
        }
    }
    output.flush()
}
