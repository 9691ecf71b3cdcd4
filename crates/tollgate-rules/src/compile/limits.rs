//! `limits:` becomes a list of limits, and one list more for each tier that changes them.

use tollgate::OnChange;
use tollgate::decision::MAX_LIMITS;
use tollgate::limit::{is_monthly, parse_calendar_rate, parse_rate};

use crate::Problem;
use crate::diagnostic::{Diagnostic, Span};
use crate::limit_spec::{AlignSpec, LimitSpec, RuleLimit};
use crate::rule::TierLimits;
use crate::tier::Multiplier;
use crate::yaml::{Node, Value};

use super::context::Context;
use super::quantities;
use super::tiers::{Tier, Tiers};

/// Whose limits are read.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) rule: &'a str,
    pub(super) on_change: OnChange,
    pub(super) tiered: bool,
}

/// One limit as it is written, and where.
pub(super) struct Spec {
    pub(super) spec: LimitSpec,
    pub(super) span: Span,
}

/// The limits of a rule for all tiers, and the places of the plain ones. `None`: reported.
pub(super) fn of_rule(
    context: Context<'_>,
    specs: &[Spec],
    blame: impl Fn(&Problem, usize) -> Span,
    owner: Owner<'_>,
    tiers: &Tiers<'_>,
) -> Option<TierLimits> {
    let plain = build_all(context, specs, &blame, owner, Multiplier::ONE)?;
    check_shared(context, specs, &plain);
    let owns = tiers.own_limits(owner.rule);
    if tiers.is_empty() || (!owner.tiered && owns.is_empty()) {
        return Some(TierLimits::untiered(plain));
    }
    let lists = tiers.iter().enumerate().map(|(index, tier)| {
        match owns.iter().find(|(tier, _)| *tier == index) {
            Some((_, node)) => read(tiers.context()?, node, owner),
            None => of_tier(context, specs, &plain, owner, tier),
        }
    });
    // Read all before giving up, so that all are reported.
    let lists: Vec<Option<Vec<RuleLimit>>> = lists.collect();
    Some(TierLimits::tiered(plain, lists.into_iter().collect::<Option<_>>()?))
}

/// The limits of a rule for a tier that has none of its own for it.
fn of_tier(
    context: Context<'_>,
    specs: &[Spec],
    plain: &[RuleLimit],
    owner: Owner<'_>,
    tier: &Tier,
) -> Option<Vec<RuleLimit>> {
    let same = !owner.tiered || tier.multiplier == Multiplier::ONE;
    let built = specs.iter().zip(plain).map(|(one, plain)| {
        context.count_limit(one.span)?;
        if same {
            return Some(plain.clone());
        }
        let built = one.spec.build(owner.rule, owner.on_change, tier.multiplier);
        let report = |problem: Problem| {
            let message = format!("for the tier `{}`: {}", tier.name, problem.message);
            context.error(one.span, Problem { message, ..problem });
        };
        built.map_err(report).ok()
    });
    built.collect()
}

/// Limits that stand alone: of a tier for a rule, of an override.
pub(super) fn read(context: Context<'_>, node: &Node, owner: Owner<'_>) -> Option<Vec<RuleLimit>> {
    let specs = specs(context, node)?;
    let blamed = |problem: &Problem, index: usize| blame(problem, &node.each()[index]);
    let built = build_all(context, &specs, &blamed, owner, Multiplier::ONE)?;
    check_shared(context, &specs, &built);
    Some(built)
}

/// What is written under `limits`. `None`: something was reported.
pub(super) fn specs(context: Context<'_>, node: &Node) -> Option<Vec<Spec>> {
    let nodes = node.each();
    if nodes.is_empty() {
        let problem = Problem::new("the list of limits is empty")
            .hint("write at least one, such as `limits: [10/second]`");
        context.error(node.span, problem);
        return None;
    }
    if nodes.len() > MAX_LIMITS {
        let problem = format!(
            "{} limits are too many: at most {MAX_LIMITS} are judged together",
            nodes.len()
        );
        context.error(nodes[MAX_LIMITS].span, Problem::new(problem).hint("remove some"));
        return None;
    }
    let specs: Vec<Option<Spec>> = nodes
        .iter()
        .map(|node| Some(Spec { spec: spec(context, node)?, span: node.span }))
        .collect();
    specs.into_iter().collect()
}

fn spec(context: Context<'_>, node: &Node) -> Option<LimitSpec> {
    if let Some(rate) = node.text() {
        return Some(LimitSpec { rate: rate.into(), ..LimitSpec::default() });
    }
    let flag = |name| node.get(name).map_or(Some(false), Node::boolean);
    let number = |name| node.get(name).map_or(Some(None), |node| node.whole().map(Some));
    let text = |name| node.get(name).and_then(Node::text);
    let align = node.get("align").map_or(Some(AlignSpec::Epoch), |node| context.read(node, align));
    Some(LimitSpec {
        rate: text("rate")?.into(),
        burst: number("burst")?,
        algorithm: match text("algorithm") {
            Some(name) => Some(name.parse().ok()?),
            None => None,
        },
        queue: flag("queue")?,
        align: align?,
        time_zone: text("time_zone").map(Into::into),
        stagger: flag("stagger")?,
        buckets: number("buckets")?.map(|buckets| u32::try_from(buckets).unwrap_or(u32::MAX)),
    })
}

fn align(text: &str) -> Result<AlignSpec, Problem> {
    Ok(match text {
        "epoch" => AlignSpec::Epoch,
        "first_hit" => AlignSpec::FirstHit,
        "calendar" => AlignSpec::Calendar,
        other => AlignSpec::Anchor(quantities::instant(other).map_err(|_| {
            Problem::new(format!("`align` cannot be {other:?}")).hint(
                "it can be: epoch, first_hit, calendar, or an instant such as 2027-01-01T09:00:00Z",
            )
        })?),
    })
}

fn build_all(
    context: Context<'_>,
    specs: &[Spec],
    blame: &dyn Fn(&Problem, usize) -> Span,
    owner: Owner<'_>,
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
pub(super) fn blame(problem: &Problem, node: &Node) -> Span {
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
    let Value::Map(_) = node.value else { return node.span };
    let Some(rate) = node.get("rate") else { return node.span };
    let text = rate.text().unwrap_or_default();
    let readable = match is_monthly(text) {
        true => parse_calendar_rate(text).is_ok(),
        false => parse_rate(text).is_ok_and(|builder| builder.build().is_ok()),
    };
    let named = || WORDS.iter().filter(|(word, _)| problem.message.contains(word));
    let field = readable.then(|| named().find_map(|(_, field)| node.get(field))).flatten();
    field.unwrap_or(rate).span
}

/// Two limits of the same algorithm and period have one count, which both would charge.
fn check_shared(context: Context<'_>, specs: &[Spec], built: &[RuleLimit]) {
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
