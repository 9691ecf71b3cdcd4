//! One limit of a rule as it is written, and the limits it becomes for each tier.

use std::sync::Arc;

use tollgate::headers::PolicyName;
use tollgate::limit::{is_monthly, parse_calendar_rate, parse_rate};
use tollgate::{Algorithm, Align, Limit, LimitBuilder, Micros, OnChange};

use crate::calendar::ZonedCalendar;
use crate::problem::Problem;
use crate::tier::Multiplier;

/// One limit as it is written: `10/second`, or its long form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSpec {
    /// `100/minute burst 20`.
    pub rate: String,
    /// The burst, if it is not in the rate.
    pub burst: Option<u64>,
    /// The algorithm; `None` if the rate implies it.
    pub algorithm: Option<Algorithm>,
    /// Delay instead of refusing.
    pub queue: bool,
    /// The start of fixed windows.
    pub align: AlignSpec,
    /// The time zone of calendar windows.
    pub time_zone: Option<String>,
    /// Each key's windows begin at an offset of their own.
    pub stagger: bool,
    /// Count in this many whole sub-buckets.
    pub buckets: Option<u32>,
}

/// The start of fixed windows, as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlignSpec {
    /// `epoch`
    #[default]
    Epoch,
    /// `first_hit`
    FirstHit,
    /// `calendar`
    Calendar,
    /// An instant from which whole periods count.
    Anchor(Micros),
}

/// One limit of a rule, ready to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLimit {
    /// The limit. Shared with charges made under it that are settled later.
    pub limit: Arc<Limit>,
    /// The limit in readable form: `10/second`.
    pub text: Box<str>,
    /// The name in headers: `api-1s`.
    pub policy: PolicyName,
}

impl RuleLimit {
    pub(crate) fn new(limit: Limit) -> RuleLimit {
        let (text, policy) = (limit.to_string().into(), PolicyName::of(&limit));
        RuleLimit { text, policy, limit: Arc::new(limit) }
    }
}

impl RuleLimit {
    /// Uses this name in headers, if there is one and headers can carry it.
    pub(crate) fn called(self, name: Option<&str>) -> RuleLimit {
        let policy = name.and_then(|name| PolicyName::new(name).ok());
        RuleLimit { policy: policy.unwrap_or(self.policy), ..self }
    }
}

impl LimitSpec {
    /// The limit of a rule, its numbers multiplied for a tier. The rule's name is part of the
    /// limit's identity; the numbers are not, so that they can change while what is used stays.
    pub fn build(
        &self,
        rule: &str,
        on_change: OnChange,
        multiplier: Multiplier,
    ) -> Result<RuleLimit, Problem> {
        let builder = match self.calendar()? {
            Some((units, calendar)) => {
                self.check_calendar()?;
                let builder = Limit::per_calendar(multiplier.apply(units), calendar);
                self.burst.map_or(builder.clone(), |burst| builder.burst(burst))
            }
            None => self.by_period(multiplier)?,
        };
        let builder = self.with_options(builder);
        Ok(RuleLimit::new(builder.name(rule).on_change(on_change).build()?))
    }

    /// Reads the units and the calendar of a limit with calendar windows; `None` for all others.
    fn calendar(&self) -> Result<Option<(u64, Arc<ZonedCalendar>)>, Problem> {
        if self.align != AlignSpec::Calendar && !is_monthly(&self.rate) {
            return match &self.time_zone {
                None => Ok(None),
                Some(_) => Err(Problem::new("`time_zone` has no effect without calendar windows")
                    .hint("add `align: calendar`")),
            };
        }
        let (units, unit) = parse_calendar_rate(&self.rate)?;
        let zone = self.time_zone.as_deref().unwrap_or("UTC");
        Ok(Some((units, Arc::new(ZonedCalendar::new(unit, zone)?))))
    }

    fn check_calendar(&self) -> Result<(), Problem> {
        let what = match self.align {
            AlignSpec::FirstHit => "`align: first_hit`",
            AlignSpec::Anchor(_) => "an anchor",
            AlignSpec::Epoch | AlignSpec::Calendar => match self.algorithm {
                None | Some(Algorithm::FixedWindow) => return Ok(()),
                Some(_) => {
                    return Err(Problem::new(format!(
                        "the rate {:?} counts by the calendar, which only fixed_window can",
                        self.rate
                    ))
                    .hint("write `algorithm: fixed_window`, or a period such as 30d"));
                }
            },
        };
        Err(Problem::new(format!("{what} contradicts the calendar of {:?}", self.rate))
            .hint("leave one of them out"))
    }

    /// Builds a limit that counts by a period.
    fn by_period(&self, multiplier: Multiplier) -> Result<LimitBuilder, Problem> {
        let mut builder = parse_rate(&self.rate)?;
        if let Some(burst) = self.burst {
            if self.rate.split_whitespace().any(|word| word == "burst") {
                return Err(Problem::new("the burst is given twice, in the rate and beside it")
                    .hint("leave one of them out"));
            }
            builder = builder.burst(burst);
        }
        if let Some(algorithm) = self.algorithm {
            builder = builder.algorithm(algorithm);
        }
        // The plain numbers have to be possible; what a tier makes of them is checked after that.
        let plain = self.with_options(builder).build()?;
        let units = multiplier.apply(plain.units());
        let builder = Limit::per(units, plain.period()).algorithm(plain.algorithm());
        Ok(match plain.algorithm().is_bucket() {
            true => builder.burst(multiplier.apply(plain.capacity())),
            false => builder,
        })
    }

    fn with_options(&self, mut builder: LimitBuilder) -> LimitBuilder {
        if self.queue {
            builder = builder.queue();
        }
        if self.stagger {
            builder = builder.stagger();
        }
        if let Some(buckets) = self.buckets {
            builder = builder.buckets(buckets);
        }
        match self.align {
            AlignSpec::FirstHit => builder.align(Align::FirstHit),
            AlignSpec::Anchor(anchor) => builder.align(Align::Anchor(anchor)),
            AlignSpec::Epoch | AlignSpec::Calendar => builder,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(rate: &str) -> LimitSpec {
        LimitSpec { rate: rate.into(), ..LimitSpec::default() }
    }

    #[test]
    fn tiers_multiply_rate_and_burst() {
        let cases = [
            (spec("100/minute"), "10", "1000/minute", "api-1m"),
            (spec("100/minute burst 20"), "2.5", "250/minute burst 50", "api-1m"),
            (spec("3/second"), "0.1", "1/second", "api-1s"),
            (spec("0.4/second"), "10", "20/5s", "api-5s"),
        ];
        for (spec, multiplier, text, policy) in cases {
            let multiplier = Multiplier::parse(multiplier).unwrap();
            let built = spec.build("api", OnChange::Keep, multiplier).unwrap();
            assert_eq!((&*built.text, built.policy.as_str()), (text, policy));
            let plain = spec.build("api", OnChange::Keep, Multiplier::ONE).unwrap();
            assert_eq!(built.limit.id(), plain.limit.id(), "numbers are no part of it");
        }
    }

    #[test]
    fn contradictions_are_told() {
        let cases = [
            (LimitSpec { burst: Some(5), ..spec("1/s burst 4") }, "given twice"),
            (
                LimitSpec { time_zone: Some("UTC".into()), ..spec("1/d") },
                "without calendar windows",
            ),
            (
                LimitSpec { algorithm: Some(Algorithm::TokenBucket), ..spec("1/month") },
                "only fixed_window can",
            ),
            (LimitSpec { align: AlignSpec::FirstHit, ..spec("1/month") }, "contradicts"),
            (LimitSpec { burst: Some(5), ..spec("1/month") }, "burst"),
            (LimitSpec { align: AlignSpec::Calendar, stagger: true, ..spec("1/day") }, "stagger"),
        ];
        for (spec, want) in cases {
            let problem = spec.build("api", OnChange::Keep, Multiplier::ONE).unwrap_err();
            assert!(problem.to_string().contains(want), "{spec:?}: {problem}");
        }
    }
}
