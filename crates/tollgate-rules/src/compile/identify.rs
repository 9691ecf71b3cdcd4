//! `identify`: the identification of callers.

use crate::Problem;
use crate::identify::{AddressSource, Identify, UserSource};
use crate::matcher::{parse_cidr, parse_header_name};
use crate::yaml::YamlNode;

use super::context::CompileContext;
use super::tiers::WrittenTiers;

pub(super) fn identify(
    context: CompileContext<'_>,
    node: &YamlNode,
    tiers: &WrittenTiers<'_>,
) -> Identify {
    let mut identify = Identify::default();
    if let Some(peers) = node.get("trusted_peers") {
        identify.trusted_peers = context.read_each(peers, parse_cidr).unwrap_or_default();
        if identify.trusted_peers.iter().any(|net| net.prefix_len() == 0) {
            let problem = Problem::new(
                "every peer is trusted, so any client can choose its user and address",
            )
            .hint("write the networks of your own proxies, such as 10.0.0.0/8");
            context.warn(peers.span, problem);
        }
    }
    let user = node.get("user");
    let tier = node.get("tier");
    let of_user = user.and_then(|user| header(context, user.get("api_key")));
    identify.api_key_header = header(context, node.get("api_key")).or_else(|| of_user.clone());
    identify.user =
        user.and_then(|user| self::user(context, user, of_user, tier)).unwrap_or_default();
    if let Some(tier) = tier {
        identify.tier_header = header(context, Some(tier));
        tier_of(context, tier, user, &mut identify);
        tier_table(context, tier, tiers, &mut identify);
    }
    if let Some(ip) = node.get("ip") {
        self::ip(context, ip, &mut identify);
    }
    identify
}

/// The name of the header that an object has.
fn header(context: CompileContext<'_>, node: Option<&YamlNode>) -> Option<Box<str>> {
    context.read(node?.get("header")?, parse_header_name)
}

/// Reads the source of the user. `of_user` is the header with the API key.
fn user(
    context: CompileContext<'_>,
    node: &YamlNode,
    of_user: Option<Box<str>>,
    tier: Option<&YamlNode>,
) -> Option<UserSource> {
    if let Some(entry) = node.entry("jwt") {
        return super::jwt::read(context, entry, tier);
    }
    let by_header = || header(context, Some(node)).map(UserSource::Header);
    of_user.map(UserSource::ApiKey).or_else(by_header)
}

/// Reports a tier by a claim if there is no signed token, or if it also has a header.
fn tier_of(
    context: CompileContext<'_>,
    tier: &YamlNode,
    user: Option<&YamlNode>,
    identify: &mut Identify,
) {
    let Some(claim) = tier.entry("claim") else { return };
    if user.and_then(|user| user.get("jwt")).is_none() {
        let problem = Problem::new("`claim` needs a signed token")
            .hint("write `user: { jwt: { claim: sub, keys_file: jwks.json } }` beside `tier`");
        context.error(claim.key_span, problem);
    } else if let Some(header) = tier.entry("header") {
        let problem = Problem::new("the tier comes from a claim or from a header, not from both")
            .hint("keep the claim: it is signed");
        context.error(header.key_span, problem);
        identify.tier_header = None;
    }
}

fn tier_table(
    context: CompileContext<'_>,
    node: &YamlNode,
    tiers: &WrittenTiers<'_>,
    identify: &mut Identify,
) {
    if let Some((default, name)) = node.get("default").and_then(|node| Some((node, node.text()?))) {
        tiers.check_name(context, default.span, name);
        identify.default_tier = Some(name.into());
    }
    for entry in node.get("users").map(YamlNode::entries).unwrap_or_default() {
        let Some(tier) = entry.node.text() else { continue };
        tiers.check_name(context, entry.node.span, tier);
        identify.tier_of_user.insert(entry.key.clone(), tier.into());
    }
}

fn ip(context: CompileContext<'_>, node: &YamlNode, identify: &mut Identify) {
    let header = if node.text().is_some() { Some(node) } else { node.get("header") };
    if let Some(address) = header.and_then(|node| context.read(node, address)) {
        identify.address = address;
    }
    let small = |name| node.get(name).and_then(YamlNode::whole).and_then(|n| u8::try_from(n).ok());
    identify.ipv6_prefix = small("ipv6_prefix").unwrap_or(identify.ipv6_prefix);
    identify.nat64 = node.get("nat64").and_then(YamlNode::boolean).unwrap_or(false);
    identify.trusted_hops = small("trusted_hops");
    if let Some(hops) = node.entry("trusted_hops")
        && matches!(identify.address, AddressSource::Peer | AddressSource::Header(_))
    {
        let problem = Problem::new(
            "`trusted_hops` counts entries of a forwarding header, but no such header is read",
        )
        .hint("write `header: x-forwarded-for` or `header: forwarded`");
        context.error(hops.key_span, problem);
    }
}

fn address(text: &str) -> Result<AddressSource, Problem> {
    let name = parse_header_name(text)?;
    Ok(match &*name {
        "none" => AddressSource::Peer,
        "forwarded" => AddressSource::Forwarded,
        "x-forwarded-for" => AddressSource::XForwardedFor,
        _ => AddressSource::Header(name),
    })
}
