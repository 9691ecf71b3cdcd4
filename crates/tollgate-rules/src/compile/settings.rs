//! The settings of a file beside its rules: `exempt`, `headers`, `log_keys`, `preflights`, `cors`; the gateway's are in
//! `gateway`.

use std::sync::Arc;

use tollgate::headers::Dialect;

use crate::Problem;
use crate::matcher::parse_cidr;
use crate::rule_set::RuleSettings;
use crate::yaml::YamlNode;

use super::RulesFiles;
use super::context::CompileContext;
use super::identify::identify;
use super::tiers::WrittenTiers;
use super::{cors, gateway};

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
    let preflights = files.only_section("preflights").and_then(|(_, node)| node.text());
    settings.preflights_pass = preflights == Some("pass");
    if let Some((context, node)) = files.only_section("cors") {
        settings.cors = cors::read(context, node).map(Arc::new);
    }
    for file in &files.files {
        if let Some(node) = file.root.get("exempt") {
            exempt(files.context(file), node, &mut settings);
        }
    }
    settings.gateway = Arc::new(gateway::read(files));
    settings
}

fn exempt(context: CompileContext<'_>, node: &YamlNode, settings: &mut RuleSettings) {
    if let Some(networks) = node.get("ip") {
        settings.exempt_ips.extend(context.read_each(networks, parse_cidr).unwrap_or_default());
    }
    let users = node.get("user").map(YamlNode::each).unwrap_or_default();
    settings.exempt_users.extend(users.iter().filter_map(YamlNode::text).map(Box::from));
}
