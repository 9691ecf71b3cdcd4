//! The command `tollgate simulate --scenario`: its answers are the worked examples of the algorithms, and its picture
//! shows those answers.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::command::{file, run};

const DOCUMENTS: &str = include_str!("../../tollgate/tests/data/documents.jsonl");

/// A scenario and the prefix of its worked examples.
const WORKED: [(&str, &str); 2] = [("visual", "004-visual-"), ("timeline", "002-visual-")];

/// The algorithm of a worked example, and whether it is a queue.
fn algorithm(example: &Value) -> (&str, bool) {
    let args = example["args"].as_str().expect("arguments");
    let words: Vec<&str> = args.split(' ').collect();
    let at = words.iter().position(|word| *word == "--algorithm").expect("an algorithm");
    (words[at + 1], words.contains(&"--queue"))
}

/// The answers of a scenario with one algorithm.
fn answers_of(answers: &[Value], (algorithm, queue): (&str, bool)) -> Vec<Value> {
    let is_wanted =
        |answer: &&Value| answer["algorithm"] == algorithm && answer["queue"] == Value::Bool(queue);
    answers.iter().filter(is_wanted).cloned().collect()
}

#[test]
fn the_worked_examples_are_scenarios() {
    for (scenario, prefix) in WORKED {
        let answers =
            run(["simulate", "--scenario", scenario, "--output", "jsonl"]).answers(scenario);
        let mut found = BTreeSet::new();
        for line in DOCUMENTS.lines() {
            let example: Value = serde_json::from_str(line).expect("one JSON object per line");
            let id = example["id"].as_str().expect("an id");
            if !id.starts_with(prefix) {
                continue;
            }
            let answers = answers_of(&answers, algorithm(&example));
            let ok: String = answers
                .iter()
                .map(|answer| if answer["allowed"] == true { '1' } else { '0' })
                .collect();
            assert_eq!(ok, example["ok"], "{id}");
            for (index, answer) in answers.iter().enumerate() {
                let at_us = example["at_s"][index].as_u64().expect("whole seconds") * 1_000_000;
                assert_eq!(answer["at"], at_us, "{id}, request {index}");
                let retry = example["retry_us"].get(index.to_string()).cloned();
                assert_eq!(answer["retry_after_us"], retry.unwrap_or(0.into()), "{id}, {index}");
                for column in ["remaining", "delay_us"] {
                    let expected = example.get(column).map(|column| &column[index]);
                    assert!(expected.is_none_or(|value| *value == answer[column]), "{id}, {index}");
                }
            }
            found.insert(algorithm(&example).0.to_owned() + &algorithm(&example).1.to_string());
        }
        assert!(found.len() >= 5, "{scenario} has worked examples: {found:?}");
    }
}

#[test]
fn the_picture_shows_the_answers() {
    for (scenario, _) in WORKED {
        let path = file(&format!("{scenario}.svg"), "");
        let path = path.to_str().expect("text");
        let drawn = run(["simulate", "--scenario", scenario, "--svg", path]);
        assert_eq!((drawn.code, &*drawn.stderr), (Some(0), ""), "{scenario}");
        let again = run(["simulate", "--scenario", scenario, "--svg", path, "--output", "jsonl"]);
        let picture = fs::read_to_string(path).expect("a picture");
        // A circle for each request that is admitted at once, a cross for each that is refused, besides the legend.
        let answers = again.answers(scenario);
        let count =
            |fits: &dyn Fn(&Value) -> bool| answers.iter().filter(|answer| fits(answer)).count();
        let at_once = count(&|answer| answer["allowed"] == true && answer["delay_us"] == 0);
        let refused = count(&|answer| answer["allowed"] == false);
        assert_eq!(
            picture.matches("<circle class=\"admitted\"").count(),
            at_once + 1,
            "{scenario}"
        );
        assert_eq!(picture.matches("class=\"x refused\"").count(), refused + 1, "{scenario}");
        for algorithm in ["token_bucket", "leaky_bucket, queue", "sliding_window_counter"] {
            let heading = format!("\n{algorithm}\n");
            assert!(drawn.stdout.contains(&heading), "{scenario}: {algorithm}");
            assert!(picture.contains(&format!(">{algorithm}</text>")), "{scenario}: {algorithm}");
        }
    }
}

#[test]
fn a_scenario_stands_alone() {
    let wrong = run(["simulate", "--scenario", "visual", "--rate", "1/s"]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    let unknown = run(["simulate", "--scenario", "earthquake"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("boundary"), "{}", unknown.stderr);
}
