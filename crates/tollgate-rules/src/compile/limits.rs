//! `limits:` becomes a list of limits, and one list more for each tier that changes them.

use tollgate::decision::MAX_LIMITS;
use tollgate::limit::{CalendarUnit, is_monthly, parse_calendar_rate, parse_rate};
use tollgate::{Algorithm, Align, Limit, LimitError, OnChange, Precision};

use crate::Problem;
use crate::calendar::ZonedCalendar;
use crate::diagnostic::{Diagnostic, Span};
use crate::limit_spec::{AlignSpec, LimitSpec, RuleLimit};
use crate::rule::TierLimits;
use crate::suggest::suggest;
use crate::tier::Multiplier;
use crate::yaml::{YamlNode, YamlValue};

use super::context::{CompileContext, optional};
use super::quantities;
use super::tiers::{WrittenTier, WrittenTiers};

/// The rule that limits are read for, also those of its tiers and overrides.
#[derive(Clone, Copy)]
pub(super) struct LimitOwner<'a> {
    pub(super) rule: &'a str,
    pub(super) on_change: OnChange,
    pub(super) tiered: bool,
}

/// One limit as it is written, and where.
pub(crate) struct WrittenLimit {
    pub(crate) spec: LimitSpec,
    pub(crate) span: Span,
}

/// The limits of a rule as they are written, and what they become for all tiers. `None`: reported.
pub(super) fn read_all(
    context: CompileContext<'_>,
    node: &YamlNode,
    owner: LimitOwner<'_>,
    tiers: &WrittenTiers<'_>,
) -> Option<(Vec<WrittenLimit>, TierLimits)> {
    let ReadableLimits { specs, nodes, is_complete } = specs(context, node)?;
    let blamed = |problem: &Problem, index: usize| blame(problem, nodes[index]);
    if !is_complete {
        build_all(context, &specs, &blamed, owner, Multiplier::ONE);
        return None;
    }
    let limits = read_rule_limits(context, &specs, blamed, owner, tiers)?;
    Some((specs, limits))
}

/// The limits of a rule for all tiers. `None`: reported.
pub(super) fn read_rule_limits(
    context: CompileContext<'_>,
    specs: &[WrittenLimit],
    blame: impl Fn(&Problem, usize) -> Span,
    owner: LimitOwner<'_>,
    tiers: &WrittenTiers<'_>,
) -> Option<TierLimits> {
    let plain = build_all(context, specs, &blame, owner, Multiplier::ONE)?;
    check_shared(context, specs, &plain);
    let owns = tiers.own_limits(owner.rule);
    if tiers.is_empty() || (!owner.tiered && owns.is_empty()) {
        return Some(TierLimits::untiered(plain));
    }
    let lists = tiers.iter().enumerate().map(|(index, tier)| {
        match owns.iter().find(|(tier, _)| *tier == index) {
            Some((_, node)) => {
                read_replacement(tiers.context()?, node, owner, ReplacedLimits(&plain)).map(Some)
            }
            None => multiplied_limits(context, specs, &plain, owner, tier),
        }
    });
    // Read all before giving up, so that all are reported.
    let lists: Vec<Option<Option<Vec<RuleLimit>>>> = lists.collect();
    Some(TierLimits::tiered(plain, lists.into_iter().collect::<Option<_>>()?))
}

/// The multiplied limits of a rule for a tier; `None` inside if nothing is multiplied.
fn multiplied_limits(
    context: CompileContext<'_>,
    specs: &[WrittenLimit],
    plain: &[RuleLimit],
    owner: LimitOwner<'_>,
    tier: &WrittenTier,
) -> Option<Option<Vec<RuleLimit>>> {
    let Some(multiplier) = tier.multiplier.filter(|_| owner.tiered) else { return Some(None) };
    let built = specs.iter().zip(plain).map(|(one, plain)| {
        context.count_limit(one.span)?;
        if multiplier == Multiplier::ONE {
            return Some(plain.clone());
        }
        let built = one.spec.build(owner.rule, owner.on_change, multiplier);
        let report = |problem: Problem| {
            let message = format!("for the tier `{}`: {}", tier.name, problem.message);
            context.error(one.span, Problem { message, ..problem });
        };
        built.map_err(report).ok()
    });
    built.collect::<Option<_>>().map(Some)
}

/// The limits of a rule that others replace.
#[derive(Clone, Copy)]
pub(super) struct ReplacedLimits<'a>(pub(super) &'a [RuleLimit]);

/// Reads limits that replace those of a rule, for a tier or an override.
pub(super) fn read_replacement(
    context: CompileContext<'_>,
    node: &YamlNode,
    owner: LimitOwner<'_>,
    replaced: ReplacedLimits<'_>,
) -> Option<Vec<RuleLimit>> {
    let ReadableLimits { mut specs, nodes, is_complete } = specs(context, node)?;
    replaced.complete(&nodes, &mut specs);
    let blamed = |problem: &Problem, index: usize| blame(problem, nodes[index]);
    let built = build_all(context, &specs, &blamed, owner, Multiplier::ONE);
    let built = built.filter(|_| is_complete)?;
    check_shared(context, &specs, &built);
    Some(built)
}

impl ReplacedLimits<'_> {
    /// Fills in the fields that limits leave out, such as the algorithm, from the rule's limit of
    /// the same period, so that the same count continues, and the end of an override gives no
    /// second quota.
    fn complete(self, nodes: &[&YamlNode], specs: &mut [WrittenLimit]) {
        let algorithm_of = |index: usize| self.0[index].limit.algorithm();
        let mut free: Vec<usize> = (0..self.0.len()).collect();
        let mut take = |wanted: &dyn Fn(usize) -> bool| {
            let place = free.iter().position(|index| wanted(*index))?;
            Some(free.remove(place))
        };
        // Each of the rule's limits is used once. Limits that name their algorithm choose first.
        for named in [true, false] {
            for (one, node) in specs.iter_mut().zip(nodes) {
                let given = one.spec.algorithm;
                if node.get("algorithm").is_some() != named {
                    continue;
                }
                let fits = |index| {
                    self.fits(index, &one.spec) && given.is_none_or(|it| it == algorithm_of(index))
                };
                if let Some(source) = take(&fits) {
                    inherit(&self.0[source].limit, node, &mut one.spec);
                }
            }
        }
    }

    /// Returns true if a limit counts in the same period as one of the rule's, and can use its
    /// algorithm.
    fn fits(self, index: usize, spec: &LimitSpec) -> bool {
        let limit = &self.0[index].limit;
        let of_month = limit.calendar().is_some_and(|one| one.unit() == CalendarUnit::Month);
        if is_monthly(&spec.rate) || of_month {
            return is_monthly(&spec.rate) && of_month;
        }
        let given = parse_rate(&spec.rate).and_then(|rate| rate.build());
        let has_burst = spec.burst.is_some()
            || given.as_ref().is_ok_and(|given| given.algorithm() == Algorithm::TokenBucket);
        given.is_ok_and(|given| given.period() == limit.period())
            && (!has_burst || limit.algorithm().is_bucket())
    }
}

/// Fills in the fields of a limit that `node` leaves out from `from`.
fn inherit(from: &Limit, node: &YamlNode, spec: &mut LimitSpec) {
    let is_given = |field: &str| node.get(field).is_some();
    // A month implies the algorithm.
    if !is_monthly(&spec.rate) {
        spec.algorithm = Some(from.algorithm());
    }
    if !is_given("align") {
        spec.align = match from.align() {
            _ if from.calendar().is_some() => AlignSpec::Calendar,
            Align::FirstHit => AlignSpec::FirstHit,
            Align::Anchor(anchor) => AlignSpec::Anchor(anchor),
            Align::Epoch => AlignSpec::Epoch,
        };
    }
    let by_calendar = spec.align == AlignSpec::Calendar || is_monthly(&spec.rate);
    if !is_given("time_zone") && by_calendar {
        spec.time_zone = from.calendar().map(|calendar| calendar.zone().into());
    }
    if !is_given("stagger") && !by_calendar {
        spec.stagger = from.is_staggered();
    }
    if !is_given("queue") {
        spec.queue = from.is_queue();
    }
    if !is_given("buckets") {
        spec.buckets = match from.precision() {
            Precision::Buckets(buckets) => Some(buckets),
            Precision::Estimate => None,
        };
    }
}

/// The limits of a list whose fields can be read, and where they stand.
struct ReadableLimits<'n> {
    specs: Vec<WrittenLimit>,
    nodes: Vec<&'n YamlNode>,
    /// False if a field of another limit was reported. The others are built all the same, so that
    /// what is wrong with them is reported as well.
    is_complete: bool,
}

/// Reads `limits`. `None`: an error was reported, and there is none that can be built.
fn specs<'n>(context: CompileContext<'_>, node: &'n YamlNode) -> Option<ReadableLimits<'n>> {
    let nodes = node.each();
    if nodes.is_empty() {
        let problem = Problem::new("the list of limits is empty")
            .hint("write at least one, such as `limits: [10/second]`");
        context.error(node.span, problem);
        return None;
    }
    if nodes.len() > MAX_LIMITS {
        let problem = format!(
            "{} limits are too many: at most {MAX_LIMITS} can be decided together",
            nodes.len()
        );
        context.error(nodes[MAX_LIMITS].span, Problem::new(problem).hint("remove some"));
        return None;
    }
    let written = |node| Some((WrittenLimit { spec: spec(context, node)?, span: node.span }, node));
    let (specs, readable): (Vec<_>, Vec<_>) = nodes.iter().filter_map(written).unzip();
    let is_complete = readable.len() == nodes.len();
    Some(ReadableLimits { specs, nodes: readable, is_complete })
}

/// Reads one limit. `None`: a field was reported, and its rate if that cannot be read either.
fn spec(context: CompileContext<'_>, node: &YamlNode) -> Option<LimitSpec> {
    let spec = fields(context, node);
    if spec.is_none()
        && let Some(rate) = node.get("rate")
    {
        context.read(rate, |text| Ok(check_rate(text)?));
    }
    spec
}

/// Checks a rate without the other fields of its limit.
fn check_rate(text: &str) -> Result<(), LimitError> {
    match is_monthly(text) {
        true => parse_calendar_rate(text).map(|_| ()),
        false => parse_rate(text)?.build().map(|_| ()),
    }
}

fn fields(context: CompileContext<'_>, node: &YamlNode) -> Option<LimitSpec> {
    if let Some(rate) = node.text() {
        return Some(LimitSpec { rate: rate.into(), ..LimitSpec::default() });
    }
    let flag = |name| node.get(name).map_or(Some(false), YamlNode::boolean);
    let number = |name| optional(node.get(name), YamlNode::whole);
    let text = |name| node.get(name).and_then(YamlNode::text);
    let align = node.get("align").map_or(Some(AlignSpec::Epoch), |node| context.read(node, align));
    if align.is_none() {
        check_time_zone(context, node);
    }
    Some(LimitSpec {
        rate: text("rate")?.into(),
        burst: number("burst")?,
        algorithm: optional(node.get("algorithm"), |node| node.text()?.parse().ok())?,
        queue: flag("queue")?,
        align: align?,
        time_zone: text("time_zone").map(Into::into),
        stagger: flag("stagger")?,
        buckets: number("buckets")?.map(|buckets| u32::try_from(buckets).unwrap_or(u32::MAX)),
    })
}

/// Reports an unknown time zone of a limit that is not built because of another mistake.
fn check_time_zone(context: CompileContext<'_>, node: &YamlNode) {
    let Some(node) = node.get("time_zone") else { return };
    if let Some(Err(problem)) = node.text().map(|zone| ZonedCalendar::new(CalendarUnit::Day, zone))
    {
        context.error(node.span, problem);
    }
}

fn align(text: &str) -> Result<AlignSpec, Problem> {
    Ok(match text {
        "epoch" => AlignSpec::Epoch,
        "first_hit" => AlignSpec::FirstHit,
        "calendar" => AlignSpec::Calendar,
        other => AlignSpec::Anchor(quantities::instant(other).map_err(|_| {
            let all = "epoch, first_hit, calendar, or an instant such as 2027-01-01T09:00:00Z";
            let problem = Problem::new(format!("`align` cannot be {other:?}"));
            match suggest(other, ["epoch", "first_hit", "calendar"]) {
                Some(word) => problem.hint(format!("did you mean `{word}`? It can be: {all}")),
                None => problem.hint(format!("it can be: {all}")),
            }
        })?),
    })
}

fn build_all(
    context: CompileContext<'_>,
    specs: &[WrittenLimit],
    blame: &dyn Fn(&Problem, usize) -> Span,
    owner: LimitOwner<'_>,
    multiplier: Multiplier,
) -> Option<Vec<RuleLimit>> {
    let built = specs.iter().enumerate().map(|(index, one)| {
        context.count_limit(one.span)?;
        let built = one.spec.build(owner.rule, owner.on_change, multiplier);
        built.map_err(|problem| context.error(blame(&problem, index), problem)).ok()
    });
    let built: Vec<Option<RuleLimit>> = built.collect();
    built.into_iter().collect()
}

/// The field of a limit that a problem is about: the parser of limits does not know places.
pub(super) fn blame(problem: &Problem, node: &YamlNode) -> Span {
    // What a message says, and the field it is about.
    const WORDS: [(&str, &str); 9] = [
        ("time_zone", "time_zone"),
        ("time zone", "time_zone"),
        ("stagger", "stagger"),
        ("queue", "queue"),
        ("buckets", "buckets"),
        ("burst", "burst"),
        ("first_hit", "align"),
        ("anchor", "align"),
        ("which only fixed_window can", "algorithm"),
    ];
    let YamlValue::Map(_) = node.value else { return node.span };
    let Some(rate) = node.get("rate") else { return node.span };
    let readable = check_rate(rate.text().unwrap_or_default()).is_ok();
    let named = || WORDS.iter().filter(|(word, _)| problem.message.contains(word));
    let field = readable.then(|| named().find_map(|(_, field)| node.get(field))).flatten();
    field.unwrap_or(rate).span
}

/// Reports two limits of the same algorithm and period, because both would charge one count.
fn check_shared(context: CompileContext<'_>, specs: &[WrittenLimit], built: &[RuleLimit]) {
    for (index, one) in built.iter().enumerate() {
        let twin = built[..index].iter().position(|other| other.limit.id() == one.limit.id());
        let Some(first) = twin else { continue };
        let problem = Problem::new(format!(
            "`{}` and `{}` have the same algorithm and period, so they would share one count",
            built[first].text, one.text
        ))
        .hint("keep the stricter one, or give one of them another `algorithm`");
        let diagnostic = Diagnostic::error(context.source, specs[index].span, problem);
        context.push(diagnostic.also(context.source, specs[first].span, "the other one is here"));
    }
}
