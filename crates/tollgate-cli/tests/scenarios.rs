//! The scenarios of the guide to choosing an algorithm: each rules file meets its trace on a virtual clock, and every
//! outcome is compared with the one that the guide's words promise.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::command::run;

/// One scenario of `examples/scenarios/`.
struct Scenario {
    name: &'static str,
    /// A letter for each line of the trace: `A`llowed at once, `D`elayed, `R`efused.
    outcomes: &'static str,
    /// Lines of the trace, counted from 1, and their wait in microseconds: the delay, or the time to retry.
    waits: &'static [(usize, u64)],
}

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "daily-quota",
        outcomes: "AAAAAAAAAARAARRRAAAA",
        // Until midnight, however the requests before were spread.
        waits: &[(11, 8 * HOUR), (14, 60 * SECOND), (15, 60 * SECOND), (16, 1)],
    },
    Scenario {
        name: "login",
        outcomes: "AAAAARRRRRAAAAAARRARA",
        // From the minute's boundary on; another account from this address; another address for this account.
        waits: &[
            (6, 57 * SECOND),
            (9, 55 * SECOND),
            (10, 54 * SECOND),
            (17, 55 * SECOND),
            (18, 1),
            (20, SECOND / 2),
        ],
    },
    Scenario {
        name: "payments",
        outcomes: "AAARRRAAAARAAARRARA",
        // The refusals at 60 s and 65 s are not charged. The tenth of a day is followed by a wait for the first.
        waits: &[
            (4, 50 * SECOND),
            (5, 45 * SECOND),
            (6, 1),
            (11, 57 * SECOND),
            (15, 79_247 * SECOND),
            (16, 75_650 * SECOND),
            (18, 1),
        ],
    },
    Scenario {
        name: "public-api",
        outcomes: "AAAAAAAAAAAAAAAAAAAARRRAAAAAAARAAAAAAAAAARAAAAAAAAAAAAAAAAAAAARR",
        // The next unit of a bucket that is empty comes after 0.6 s.
        waits: &[(21, 600_000), (31, 500_000), (42, 600_000), (63, 600_000)],
    },
    Scenario {
        name: "sms",
        outcomes: "AARARARRARAA",
        // A campaign of 40 does not fit at 15:00, and 20 do. The morning's 40 come back 24 hours later.
        waits: &[
            (3, 18 * HOUR),
            (5, 17 * HOUR),
            (7, 9 * HOUR),
            (8, 1),
            // Forty-one need some of what was sent at 15:00.
            (10, 3 * HOUR),
        ],
    },
    Scenario {
        name: "streaming",
        outcomes: "ADDDDDRRAAAADAAAAAA",
        waits: &[(2, 500_000), (6, 2_500_000), (7, 500_000), (8, 500_000), (13, 500_000)],
    },
    Scenario {
        name: "uploads",
        outcomes: "ADDDDDDDDDDDDDDDDDDDDRRRDADA",
        // They arrive every 40 ms, and their work starts every 500 ms.
        waits: &[
            (2, 460_000),
            (3, 920_000),
            (21, 9_200_000),
            (22, 160_000),
            (25, 5_500_000),
            (27, 400_000),
        ],
    },
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/scenarios")
}

#[test]
fn every_scenario_has_its_outcomes_in_the_table() {
    let entries =
        fs::read_dir(folder()).expect("the scenarios").map(|entry| entry.expect("an entry"));
    let folders = entries.filter(|entry| entry.path().is_dir());
    let found: BTreeSet<_> =
        folders.map(|entry| entry.file_name().into_string().expect("text")).collect();
    let known: BTreeSet<_> = SCENARIOS.iter().map(|one| one.name.to_owned()).collect();
    assert_eq!(found, known, "write the outcomes of the new scenario into the table");
}

#[test]
fn scenarios_have_the_outcomes_that_the_guide_promises() {
    for scenario in SCENARIOS {
        let [rules, trace] = ["rules.yaml", "trace.jsonl"]
            .map(|file| folder().join(scenario.name).join(file).to_str().expect("text").to_owned());
        let checked = run(["check", "--deny-warnings", &rules]);
        assert_eq!((checked.code, &*checked.stderr), (Some(0), ""), "{}", scenario.name);

        let ran = run(["simulate", "--rules", &rules, "--trace", &trace]);
        let answers = ran.answers(scenario.name);
        let wait = |index: usize, name: &str| answers[index][name].as_u64().expect("a wait");
        let outcome = |index: usize| match (&answers[index]["allowed"], wait(index, "delay_us")) {
            (allowed, 0) if allowed == true => 'A',
            (allowed, _) if allowed == true => 'D',
            _ => 'R',
        };
        let outcomes: String = (0..answers.len()).map(outcome).collect();
        assert_eq!(outcomes, scenario.outcomes, "{}", scenario.name);
        for &(line, expected) in scenario.waits {
            let wait = wait(line - 1, "delay_us") + wait(line - 1, "retry_after_us");
            assert_eq!(wait, expected, "{}, line {line} of the trace", scenario.name);
        }
    }
}
