//! The goals, as ratios within one run, and the verdict on each.

use tollgate_bench::rounds::Figure;
use tollgate_bench::table::{BenchTable, TableStyle, figures};

/// The bound of a goal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RedisGoalBound {
    AtLeast(f64),
    AtMost(f64),
}

/// All goals that were decided. Bound: a dozen, added by hand.
#[derive(Debug, Default)]
pub(crate) struct RedisGoals(Vec<(String, RedisGoalBound, Figure)>);

impl RedisGoals {
    /// Adds a goal, if its number was measured.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        bound: RedisGoalBound,
        figure: Option<Figure>,
    ) {
        self.0.extend(figure.map(|figure| (name.into(), bound, figure)));
    }

    /// The table of goals, and true if all are met.
    pub(crate) fn table(&self, style: TableStyle) -> (BenchTable, bool) {
        let mut table =
            BenchTable::new("Goals", style, &["goal", "to be", "measured", "min to max", "result"]);
        let mut all_met = true;
        for (name, bound, figure) in &self.0 {
            let (text, met) = match bound {
                RedisGoalBound::AtLeast(least) => (format!(">= {least}"), figure.median >= *least),
                RedisGoalBound::AtMost(most) => (format!("<= {most}"), figure.median <= *most),
            };
            all_met &= met;
            table.row([
                name.clone(),
                text,
                figures(figure.median),
                format!("{}–{}", figures(figure.min), figures(figure.max)),
                if met { "met" } else { "MISSED" }.into(),
            ]);
        }
        (table, all_met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_goal_is_told() {
        let figure = |value| Figure::from_values([value].into_iter());
        let mut goals = RedisGoals::default();
        goals.add("fast", RedisGoalBound::AtLeast(2.0), figure(2.0));
        goals.add("not measured", RedisGoalBound::AtLeast(2.0), None);
        assert!(goals.table(TableStyle::Text).1);
        goals.add("small", RedisGoalBound::AtMost(1.0), figure(1.1));
        let (table, all_met) = goals.table(TableStyle::Text);
        assert!(!all_met && table.to_string().contains("MISSED"));
        assert!(!table.to_string().contains("not measured"));
    }
}
