//! The comparison of all algorithms on the same traffic: as a chart, as JSON lines, or as a table of what was
//! measured.
//!
//! Data flows one way: a scenario or a trace gives [`traffic`], [`course`] decides it by every algorithm, and
//! [`picture`], [`table`] or this file shows the outcome.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::Serialize;
use tollgate::Limit;

use super::one_limit::LimitAnswerLine;
use super::{Args, CommandFailure, OUTPUT_BYTES, OutputForm, Report};
use crate::chart::{Chart, SvgChart, TerminalChart};
use crate::settings::StoreChoice;
use course::AlgorithmCourse;
use picture::PictureHeading;
use scenario::TrafficScenario;
use traffic::TrafficTrace;

mod course;
mod measured;
mod picture;
pub(super) mod scenario;
mod table;
#[cfg(test)]
mod tests;
mod traffic;

pub(super) use course::{ComparedLimit, RequestFate};
pub(super) use picture::TrafficView;
pub(super) use traffic::{REQUESTS_MAX, TrafficSpan, counted, no_requests, too_many_requests};

/// Columns of a chart.
const CHART_COLUMNS: usize = 80;

/// Compares the algorithms on a scenario.
pub(super) fn run_scenario(scenario: &TrafficScenario, args: &Args) -> Result<(), CommandFailure> {
    let output = args.output.unwrap_or(OutputForm::Chart);
    let traffic = scenario.traffic();
    let limits = limits_of_all(&scenario.limit()).map_err(CommandFailure::Input)?;
    let courses = AlgorithmCourse::run_each(limits, &traffic);
    let mut heading = scenario.heading();
    if let Some(title) = &args.title {
        heading.title.clone_from(title);
    }
    show_courses(&heading, &traffic, &courses, (output, args.svg.as_deref()))
}

/// Runs a trace through one limit, or through all algorithms, and shows it as a whole.
pub(super) fn run_trace(args: &Args, path: &Path) -> Result<(), CommandFailure> {
    if !matches!(args.store, StoreChoice::Memory) {
        let problem = "charts and tables of a limit are made in memory";
        let hint = "leave out --store, or write --output jsonl without --svg";
        return Err(CommandFailure::Usage(Report::new(problem).hint(hint)));
    }
    // The options are checked before the trace is read: it may come from a pipe.
    let limits = match args.limit.compares_all() {
        true => args.limit.compared().and_then(|limit| limits_of_all(&limit)),
        false => args.limit.build().map(|limit| vec![limit]),
    };
    let limits = limits.map_err(CommandFailure::Input)?;
    let traffic = TrafficTrace::read(path)?;
    let courses = AlgorithmCourse::run_each(limits, &traffic);
    let mut heading = PictureHeading::of_trace(path, &traffic, &courses[0].limit);
    if let Some(title) = &args.title {
        heading.title.clone_from(title);
    }
    let output = args.output.unwrap_or(OutputForm::Jsonl);
    show_courses(&heading, &traffic, &courses, (output, args.svg.as_deref()))
}

fn limits_of_all(limit: &ComparedLimit) -> Result<Vec<Limit>, Report> {
    limit.with_each_algorithm().map_err(|error| Report::new(error.to_string()))
}

fn show_courses(
    heading: &PictureHeading,
    traffic: &TrafficTrace,
    courses: &[AlgorithmCourse],
    (output, svg): (OutputForm, Option<&Path>),
) -> Result<(), CommandFailure> {
    match output {
        OutputForm::Jsonl => print_answers(courses).map_err(CommandFailure::from_output)?,
        OutputForm::Table => {
            print(table::text(traffic, courses).as_bytes())?;
        }
        OutputForm::Chart => {}
    }
    show(&picture::comparison(heading, traffic, courses), output, svg)
}

/// Writes to standard output.
pub(super) fn print(text: &[u8]) -> Result<(), CommandFailure> {
    io::stdout().write_all(text).map_err(CommandFailure::from_output)
}

/// Prints a chart if the output is one, and writes it to a file if there is one.
pub(super) fn show(
    chart: &Chart,
    output: OutputForm,
    svg: Option<&Path>,
) -> Result<(), CommandFailure> {
    if output == OutputForm::Chart {
        print(TerminalChart::for_stdout(CHART_COLUMNS).draw(chart).as_bytes())?;
    }
    let Some(path) = svg else { return Ok(()) };
    std::fs::write(path, SvgChart.draw(chart)).map_err(|error| {
        CommandFailure::Input(Report::new(format!("cannot write {}: {error}", path.display())))
    })
}

/// The output of an answer of one algorithm.
#[derive(Serialize)]
struct CourseAnswerLine<'a> {
    /// Left out if there is only one algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<bool>,
    #[serde(flatten)]
    answer: LimitAnswerLine<'a>,
}

fn print_answers(courses: &[AlgorithmCourse]) -> io::Result<()> {
    let mut output = BufWriter::with_capacity(OUTPUT_BYTES, io::stdout().lock());
    let has_many = courses.len() > 1;
    for course in courses {
        for answer in &course.answers {
            let line = CourseAnswerLine {
                algorithm: has_many.then(|| course.limit.algorithm().name()),
                queue: has_many.then(|| course.limit.is_queue()),
                answer: LimitAnswerLine::new(answer.at, &answer.key, answer.cost, &answer.decision),
            };
            serde_json::to_writer(&mut output, &line)?;
            output.write_all(b"\n")?;
        }
    }
    output.flush()
}
