//! The settings of a file beside its rules: `exempt`, `headers`, `log_keys`, and the gateway's
//! fields.

use tollgate::headers::Dialect;

use crate::Problem;
use crate::matcher::parse_cidr;
use crate::pattern::Pattern;
use crate::rule_set::RuleSettings;
use crate::yaml::YamlNode;

use super::RulesFiles;
use super::context::CompileContext;
use super::identify::identify;
use super::tiers::WrittenTiers;

/// Reads all settings; what could not be read was reported.
pub(super) fn read(files: &RulesFiles<'_, '_>, tiers: &WrittenTiers<'_>) -> RuleSettings {
    let mut settings = RuleSettings::default();
    if let Some((context, node)) = files.only_section("identify") {
        settings.identify = identify(context, node, tiers);
    }
    if let Some((context, node)) = files.only_section("headers") {
        let names: Vec<&str> = node.each().iter().filter_map(YamlNode::text).collect();
        let known =
            |name: &&str| *name == "none" || Dialect::ALL.iter().any(|one| one.name() == *name);
        // Unknown names were reported with the shape.
        if names.iter().all(known) {
            match Dialect::parse_list(names) {
                Ok(dialects) => settings.dialects = dialects,
                Err(error) => context.error(node.span, Problem::new(error.to_string())),
            }
        }
    }
    let log_keys = files.only_section("log_keys").and_then(|(_, node)| node.text());
    settings.log_keys_plain = log_keys == Some("plain");
    for file in &files.files {
        let context = files.context(file);
        if let Some(node) = file.root.get("exempt") {
            exempt(context, node, &mut settings);
        }
        gateway(context, &file.root);
    }
    settings
}

fn exempt(context: CompileContext<'_>, node: &YamlNode, settings: &mut RuleSettings) {
    if let Some(networks) = node.get("ip") {
        settings.exempt_ips.extend(context.read_each(networks, parse_cidr).unwrap_or_default());
    }
    let users = node.get("user").map(YamlNode::each).unwrap_or_default();
    settings.exempt_users.extend(users.iter().filter_map(YamlNode::text).map(Box::from));
}

/// Checks the settings that act only in the gateway, and warns that they have no effect yet.
fn gateway(context: CompileContext<'_>, root: &YamlNode) {
    let upstreams = root.entry("upstreams");
    let names = || upstreams.iter().flat_map(|entry| entry.node.entries()).map(|entry| &*entry.key);
    if let Some(upstreams) = upstreams {
        for entry in upstreams.node.entries() {
            context.read(&entry.node, url);
        }
        context.no_effect(upstreams.key_span, "upstreams", "in the gateway");
    }
    let Some(routes) = root.entry("routes") else { return };
    for route in routes.node.items() {
        route.get("path").map(|path| context.read(path, Pattern::parse));
        let Some(upstream) = route.get("upstream") else { continue };
        context.read(upstream, |name| {
            if names().any(|known| known == name) {
                return Ok(());
            }
            let hint = context.did_you_mean(name, names(), || {
                format!("write `upstreams: {{ {name}: \"http://127.0.0.1:3000\" }}`")
            });
            Err(Problem::new(format!("there is no upstream `{name}`")).hint(hint))
        });
    }
    context.no_effect(routes.key_span, "routes", "in the gateway");
}

fn url(text: &str) -> Result<(), Problem> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_host = |host: &str| !host.is_empty() && !host.contains(char::is_whitespace);
    if host.is_some_and(is_host) {
        return Ok(());
    }
    Err(Problem::new(format!("{text:?} is not the address of a server"))
        .hint("write `http://127.0.0.1:3000` or `https://app.example`"))
}
