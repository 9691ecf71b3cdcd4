use super::course::{AlgorithmCourse, most_in};
use super::scenario::{SCENARIOS, TrafficScenario};

fn courses(name: &str) -> Vec<AlgorithmCourse> {
    let scenario = TrafficScenario::find(name).unwrap();
    let limits = scenario.limit().with_each_algorithm().unwrap();
    AlgorithmCourse::run_each(limits, &scenario.traffic())
}

#[test]
fn a_window_includes_its_end_and_excludes_its_start() {
    assert_eq!(most_in(vec![(10, 1), (0, 2), (9, 4)], 10), 6);
    assert_eq!(most_in(vec![(10, 1), (1, 2), (9, 4)], 10), 7);
    assert_eq!(most_in(vec![], 10), 0);
}

#[test]
fn the_boundary_has_the_requests_that_it_explains() {
    let served =
        |one: &AlgorithmCourse| one.answers.iter().filter(|one| one.decision.allowed()).count();
    let courses = courses("boundary");
    for course in &courses {
        assert_eq!(course.answers.len(), 20, "10 on each side");
        let admits_all = course.limit.algorithm() == tollgate::Algorithm::FixedWindow;
        assert_eq!(served(course) == 20, admits_all, "{}", course.name());
    }
}

#[test]
fn no_algorithm_serves_more_than_it_promises() {
    for scenario in &SCENARIOS {
        let limit = scenario.limit();
        for course in courses(scenario.name) {
            let most = course.most_in_a_period();
            let promised = match (course.limit.algorithm(), course.limit.is_queue()) {
                (tollgate::Algorithm::SlidingWindowLog, _) | (_, true) => limit.units,
                _ => 2 * limit.units,
            };
            assert!(most <= promised, "{}, {}: {most}", scenario.name, course.name());
        }
    }
}
